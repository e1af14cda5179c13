//! The task that writes the file of a trace while the target runs. It asks for more as soon as much has come, before buffers are full.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::Arrival;
use crate::conn::Client;
use crate::exit::Failure;
use crate::output::Destination;

/// Number of bytes after which the task asks for more at once.
const MUCH: usize = 64 << 10;
/// Time between two questions if little has come.
const PAUSE: Duration = Duration::from_millis(2);

/// A task that fills the file of a trace.
#[derive(Debug)]
pub(super) struct Puller {
    stop: oneshot::Sender<()>,
    ending: Arc<AtomicBool>,
    task: JoinHandle<(Destination, Result<(), Failure>)>,
}

impl Puller {
    /// Begins to fill a file with the trace of a measurement. If that fails, tells it as an arrival of the site with this number.
    pub(super) fn start(
        (client, measurement): (Client, u64),
        file: Destination,
        (site, events): (usize, mpsc::Sender<Arrival>),
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let ending = Arc::new(AtomicBool::new(false));
        let is_ending = Arc::clone(&ending);
        let task = tokio::spawn(async move {
            let mut file = file;
            let pulled = pull((&client, measurement), &mut file, &is_ending, stopped).await;
            if let Err(failure) = &pulled {
                // Without a receiver, the command ends already, and takes the failure from the task.
                drop(events.send((site, Err(failure.clone()))).await);
            }
            (file, pulled)
        });
        Puller { stop, ending, task }
    }

    /// Tells the task that the measurement is about to be removed. It reads on until then, so that no buffer becomes full meanwhile.
    pub(super) fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// Ends the task and writes the rest of the file.
    pub(super) async fn finish(self, rest: &[u8]) -> Result<(), Failure> {
        // An error means that the task has ended already.
        let _ended = self.stop.send(());
        let (mut file, pulled) = self.task.await.map_err(|e| {
            Failure::failed(format!("the trace was not written: {e}"), "report this as a defect of ingraft")
        })?;
        // After a failure, a part of a record may be at the end of the file, and nothing may follow it.
        pulled?;
        file.append(rest)
    }
}

/// Writes what comes until it is stopped.
async fn pull(
    (client, measurement): (&Client, u64),
    file: &mut Destination,
    ending: &AtomicBool,
    mut stopped: oneshot::Receiver<()>,
) -> Result<(), Failure> {
    let mut begin = true;
    loop {
        let bytes = match client.read_trace(measurement, begin).await {
            Ok(bytes) => bytes,
            // The measurement was removed between the two.
            Err(_) if ending.load(Ordering::Relaxed) => return Ok(()),
            Err(failure) => return Err(failure),
        };
        begin = false;
        file.append(&bytes)?;
        let pause = if bytes.len() < MUCH { PAUSE } else { Duration::ZERO };
        tokio::select! {
            biased;
            _ = &mut stopped => return Ok(()),
            () = tokio::time::sleep(pause) => {}
        }
    }
}
