//! Messages of answers that wait until the client reads them. They are kept encoded, or as readings from which they are built. While they
//! wait, their bytes count towards the quota of the client's user.

use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use ingraft_wire::ProtocolFailure;
use prost::Message;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::Stream;
use tonic::Status;

use crate::quota::{CountedBytes, Payer};

/// Messages in their order. Each is decoded or built only when the client is ready for it.
pub struct WaitingMessages<T> {
    messages: Box<dyn Iterator<Item = Result<T, Status>> + Send>,
    begun: Option<oneshot::Sender<()>>,
}

impl<T: Message + Default + 'static> WaitingMessages<T> {
    /// Encodes messages now, and decodes each when its turn comes, because encoded messages take much less memory. Fails if too many bytes
    /// of the user wait. Without a payer, the messages are kept unencoded.
    pub fn packed(
        payer: Option<&Payer>,
        messages: impl IntoIterator<Item = T>,
    ) -> Result<WaitingMessages<T>, ProtocolFailure> {
        let Some(payer) = payer else {
            let messages: Vec<T> = messages.into_iter().collect();
            return Ok(WaitingMessages::lazy(messages));
        };
        let pack = |message: T| {
            let held = payer.hold(message.encoded_len())?;
            Ok(Packed { bytes: message.encode_to_vec(), held, kind: PhantomData })
        };
        let packed: Vec<Packed<T>> = messages.into_iter().map(pack).collect::<Result<_, ProtocolFailure>>()?;
        Ok(WaitingMessages { messages: Box::new(packed.into_iter().map(Packed::unpack)), begun: None })
    }
}

impl<T: 'static> WaitingMessages<T> {
    /// Returns messages that are built when their turn comes.
    pub fn lazy(messages: impl IntoIterator<Item = T, IntoIter: Send + 'static>) -> WaitingMessages<T> {
        WaitingMessages { messages: Box::new(messages.into_iter().map(Ok)), begun: None }
    }

    /// Adds a receiver. It gets a message when the first message of the answer is taken, or an error if the client is gone before that.
    pub fn with_receipt(mut self) -> (WaitingMessages<T>, oneshot::Receiver<()>) {
        let (tell, hear) = oneshot::channel();
        self.begun = Some(tell);
        (self, hear)
    }
}

impl<T: 'static> Iterator for WaitingMessages<T> {
    type Item = Result<T, Status>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(begun) = self.begun.take() {
            // An error means that the receiver was dropped.
            let _ = begun.send(());
        }
        self.messages.next()
    }
}

/// An encoded message.
struct Packed<T> {
    bytes: Vec<u8>,
    held: CountedBytes,
    kind: PhantomData<fn() -> T>,
}

impl<T: Message + Default> Packed<T> {
    fn unpack(self) -> Result<T, Status> {
        let Packed { bytes, held, kind: _ } = self;
        let message = T::decode(bytes.as_slice()).map_err(|e| Status::internal(e.to_string()));
        drop((bytes, held));
        message
    }
}

/// Part of an answer that a task sends: one message, or several.
pub enum AnswerPart<T> {
    /// One small message.
    Message(T),
    /// Several messages, which go out before any later part.
    Many(WaitingMessages<T>),
}

/// The end of a channel into which a task sends its parts.
pub type PartSender<T> = mpsc::Sender<Result<AnswerPart<T>, Status>>;

/// The messages of an answer, from the parts that a task sends.
pub struct AnswerMessages<T> {
    parts: mpsc::Receiver<Result<AnswerPart<T>, Status>>,
    many: Option<WaitingMessages<T>>,
}

/// Returns a channel that holds up to `parts` parts.
pub fn channel<T>(parts: usize) -> (PartSender<T>, AnswerMessages<T>) {
    let (tell, hear) = mpsc::channel(parts);
    (tell, AnswerMessages { parts: hear, many: None })
}

impl<T: 'static> Stream for AnswerMessages<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(message) = self.many.as_mut().and_then(Iterator::next) {
                return Poll::Ready(Some(message));
            }
            self.many = None;
            match ready!(self.parts.poll_recv(cx)) {
                Some(Ok(AnswerPart::Message(message))) => return Poll::Ready(Some(Ok(message))),
                Some(Ok(AnswerPart::Many(many))) => self.many = Some(many),
                Some(Err(status)) => return Poll::Ready(Some(Err(status))),
                None => return Poll::Ready(None),
            }
        }
    }
}

/// Bytes of an answer on their way to the client. They count until the socket has accepted them.
#[derive(Debug)]
pub struct Unread {
    bytes: Bytes,
    _held: Option<CountedBytes>,
}

impl Unread {
    /// Counts the bytes to `payer`; without a payer they are not counted.
    pub fn new(bytes: Bytes, payer: Option<&Payer>) -> Result<Unread, ProtocolFailure> {
        let held = payer.map(|payer| payer.hold(bytes.len())).transpose()?;
        Ok(Unread { bytes, _held: held })
    }
}

impl Buf for Unread {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}

#[cfg(test)]
mod tests {
    use ingraft_wire::v1;
    use tokio_stream::StreamExt;

    use super::*;
    use crate::quota::{QuotaHolder, Quotas, ResourceTable};

    fn payer() -> Payer {
        let table = ResourceTable::new(Quotas::default(), 1 << 20);
        table.call(QuotaHolder::User(4_000_001)).unwrap().payer()
    }

    fn lines(count: usize) -> impl Iterator<Item = v1::Progress> + Send + 'static {
        (0..count).map(|n| v1::Progress { text: format!("{n:0>1000}"), ..Default::default() })
    }

    #[test]
    fn messages_count_until_they_are_taken() {
        let payer = payer();
        let mut waiting = WaitingMessages::packed(Some(&payer), lines(3)).unwrap();
        let count = payer.held();
        assert!((3000..3100).contains(&count), "{count}");
        assert_eq!(waiting.next().unwrap().unwrap().text.len(), 1000);
        assert_eq!(payer.held(), count * 2 / 3);
        assert_eq!(waiting.by_ref().count(), 2);
        assert_eq!(payer.held(), 0);
        let refused = WaitingMessages::packed(Some(&payer), lines(100_000)).map(|_| ()).unwrap_err();
        assert_eq!(refused.reason, "quota_exceeded");
        assert_eq!(payer.held(), 0, "nothing is kept of what is refused");
        drop(WaitingMessages::packed(Some(&payer), lines(3)).unwrap());
        assert_eq!(payer.held(), 0, "nor of what nobody reads");
        assert_eq!(WaitingMessages::packed(None, lines(3)).unwrap().count(), 3);
    }

    #[test]
    fn bytes_count_until_they_are_sent() {
        let payer = payer();
        let mut unread = Unread::new(Bytes::from_static(&[7; 100]), Some(&payer)).unwrap();
        unread.advance(60);
        assert_eq!((unread.remaining(), payer.held()), (40, 100));
        drop(unread);
        assert_eq!(payer.held(), 0);
        assert!(Unread::new(vec![0; 60 << 20].into(), Some(&payer)).is_err());
    }

    #[tokio::test]
    async fn parts_come_in_order_and_their_beginning_is_acknowledged() {
        let (tell, told) = channel(4);
        let (many, mut begun) = WaitingMessages::packed(None, lines(2)).unwrap().with_receipt();
        let one = || v1::Progress { text: "one".into(), ..Default::default() };
        for part in [AnswerPart::Message(one()), AnswerPart::Many(many), AnswerPart::Message(one())] {
            assert!(tell.send(Ok(part)).await.is_ok());
        }
        drop(tell);
        assert!(begun.try_recv().is_err(), "nobody has read anything");
        let all: Vec<_> = told.map(|message| message.unwrap().text.len()).collect().await;
        assert_eq!(all, [3, 1000, 1000, 3]);
        assert!(begun.await.is_ok());
        let (unread, begun) = WaitingMessages::packed(None, lines(2)).unwrap().with_receipt();
        drop(unread);
        assert!(begun.await.is_err(), "the client has gone");
    }
}
