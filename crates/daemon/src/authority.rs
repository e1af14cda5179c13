//! Unix sockets for clients that are built on grpc-core (Python, C++, Ruby) or on netty (Java). These send the socket's path as
//! `:authority`, percent-encoded or plain. Neither is a valid authority of a URI, and h2 resets such a request without an error for the
//! server (hyperium/h2 #487, grpc/grpc #38142). On a Unix socket the authority has no meaning, so this code replaces the invalid characters
//! before h2 reads them.
//!
//! The code examines only header fragments, changes only values without Huffman coding, and changes no length. So the HPACK tables of both
//! sides stay equal. It passes bytes that it cannot parse on unchanged, and h2 decides about them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

const PREFACE: usize = 24;
const FRAME_HEADER: usize = 9;
const HEADERS: u8 = 1;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// Largest frame that a server accepts unless it announces more (RFC 9113, section 4.2).
const FRAME_MAX: usize = 16 << 10;

/// State of the frame-by-frame examination of a client's bytes.
#[derive(Debug)]
struct FrameScan {
    /// Number of bytes of the current frame that are passed on without examination.
    pass: usize,
    /// Bytes that are held back until there are `hold` of them: the header of a frame, or a whole HEADERS frame.
    held: Vec<u8>,
    hold: usize,
}

impl FrameScan {
    fn new() -> Self {
        FrameScan { pass: PREFACE, held: Vec::new(), hold: FRAME_HEADER }
    }

    /// Examines `input`, and appends the bytes that may be passed on to `out`.
    fn feed(&mut self, mut input: &[u8], out: &mut Vec<u8>) {
        while !input.is_empty() {
            let wanted = if self.pass > 0 { self.pass } else { self.hold - self.held.len() };
            let (now, later) = input.split_at(wanted.min(input.len()));
            input = later;
            if self.pass > 0 {
                out.extend_from_slice(now);
                self.pass -= now.len();
                continue;
            }
            self.held.extend_from_slice(now);
            if self.held.len() == self.hold {
                self.complete(out);
            }
        }
    }

    /// Passes on the held bytes, which are complete: the header of a frame, or a whole HEADERS frame. If they are the header of a HEADERS
    /// frame, holds back the rest of that frame too.
    fn complete(&mut self, out: &mut Vec<u8>) {
        let &[a, b, c, kind, flags, ..] = self.held.as_slice() else { return };
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        if self.hold == FRAME_HEADER {
            if kind == HEADERS && (1..=FRAME_MAX).contains(&length) {
                self.hold += length;
                return;
            }
            self.pass = length;
        } else if let Some(block) = fragment(&mut self.held[FRAME_HEADER..], flags) {
            // A block that cannot be parsed is passed on unchanged.
            let _ = clean(block);
        }
        out.append(&mut self.held);
        self.hold = FRAME_HEADER;
    }
}

/// Returns the header block fragment of a HEADERS frame (RFC 9113, section 6.2).
fn fragment(payload: &mut [u8], flags: u8) -> Option<&mut [u8]> {
    let (mut start, mut end) = (0, payload.len());
    if flags & PADDED != 0 {
        end = end.checked_sub(usize::from(*payload.first()?))?;
        start += 1;
    }
    if flags & PRIORITY != 0 {
        start += 5;
    }
    payload.get_mut(start..end)
}

/// Finds the authority in a header block (RFC 7541, section 6), and replaces the characters that an authority may not contain.
fn clean(block: &mut [u8]) -> Option<()> {
    let mut at = 0;
    loop {
        let first = *block.get(at)?;
        let (prefix, literal) = match first {
            0x80.. => (7, false),
            0x40.. => (6, true),
            0x20.. => (5, false),
            _ => (4, true),
        };
        let (index, next) = integer(block, at, prefix)?;
        at = next;
        if !literal {
            continue;
        }
        // Index 1 is `:authority` in the static table. Index 0 stands for a name that follows as a string.
        let mut found = index == 1;
        if index == 0 {
            let name = string(block, at)?;
            found = !name.coded && block.get(name.start..name.end)? == b":authority";
            at = name.end;
        }
        let value = string(block, at)?;
        at = value.end;
        if found {
            let text = block.get_mut(value.start..value.end).filter(|_| !value.coded)?;
            if text.iter().any(|b| matches!(b, b'/' | b'%')) {
                text.iter_mut().filter(|b| !b.is_ascii_alphanumeric()).for_each(|b| *b = b'-');
            }
            return Some(());
        }
    }
}

/// Reads an integer, and returns it with the index of the byte after it (RFC 7541, section 5.1).
fn integer(block: &[u8], at: usize, prefix: u32) -> Option<(usize, usize)> {
    let mask = (1_usize << prefix) - 1;
    let mut value = usize::from(*block.get(at)?) & mask;
    let mut at = at + 1;
    if value < mask {
        return Some((value, at));
    }
    for shift in [0, 7, 14] {
        let byte = usize::from(*block.get(at)?);
        at += 1;
        value += (byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((value, at));
        }
    }
    None
}

struct HpackString {
    coded: bool,
    start: usize,
    end: usize,
}

/// Finds the bytes of a string, and whether it is Huffman coded (RFC 7541, section 5.2).
fn string(block: &[u8], at: usize) -> Option<HpackString> {
    let coded = *block.get(at)? & 0x80 != 0;
    let (length, start) = integer(block, at, 7)?;
    let end = start + length;
    (end <= block.len()).then_some(HpackString { coded, start, end })
}

/// A connection over a Unix socket whose client may send the socket's path as the authority.
#[derive(Debug)]
pub struct Lenient {
    stream: UnixStream,
    frames: FrameScan,
    /// Bytes that have been examined; the first `at` of them were read already.
    passed: Vec<u8>,
    at: usize,
}

impl Lenient {
    /// Wraps an accepted connection.
    pub fn new(stream: UnixStream) -> Self {
        Lenient { stream, frames: FrameScan::new(), passed: Vec::new(), at: 0 }
    }
}

impl AsyncRead for Lenient {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.at == this.passed.len() {
            this.passed.clear();
            this.at = 0;
            let mut chunk = [0; 8 << 10];
            let mut read = ReadBuf::new(&mut chunk);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.frames.feed(read.filled(), &mut this.passed);
        }
        let rest = this.passed.get(this.at..).unwrap_or_default();
        let now = rest.len().min(buf.remaining());
        buf.put_slice(rest.get(..now).unwrap_or_default());
        this.at += now;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Lenient {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    fn text(text: &str) -> Vec<u8> {
        [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()
    }

    fn passed(frames: &[Vec<u8>], step: usize) -> Vec<u8> {
        let input = [&[b'P'; PREFACE][..], &frames.concat()].concat();
        let (mut state, mut out) = (FrameScan::new(), Vec::new());
        for part in input.chunks(step) {
            state.feed(part, &mut out);
        }
        assert_eq!(out.len(), input.len());
        out.split_off(PREFACE)
    }

    /// Header blocks with the authority in the form of grpc-core (its name as a string, indexed), and with the static name.
    fn blocks(authority: &str) -> [Vec<u8>; 2] {
        let path = [&[0x83, 0x44][..], &text("/ingraft.v1.Daemon/Version")].concat();
        [
            [&path[..], &[0x40], &text(":authority"), &text(authority), &[0x40], &text("te"), &text("/%")].concat(),
            [&path[..], &[0x41], &text(authority)].concat(),
        ]
    }

    #[test]
    fn a_path_becomes_a_name_of_the_same_length() {
        for (sent, expected) in [
            ("%2Frun%2Fa.sock", "-2Frun-2Fa-sock"),
            ("/run/a.sock", "-run-a-sock"),
            ("localhost:7440", "localhost:7440"),
            ("", ""),
        ] {
            for (block, clean) in blocks(sent).iter().zip(&blocks(expected)) {
                let priority = [&[0; 5][..], block].concat();
                let padded = [&[3][..], block, &[0; 3]].concat();
                for (flags, payload) in [(0, block), (PRIORITY, &priority), (PADDED, &padded)] {
                    let frames = [frame(4, 0, &[0; 6]), frame(HEADERS, flags, payload), frame(0, 1, b":authority /%")];
                    let wanted = frames.concat();
                    for step in [1, 7, 1000] {
                        let out = passed(&frames, step);
                        let at = out.windows(clean.len()).position(|w| w == clean);
                        assert!(at.is_some(), "{sent} {flags}");
                        assert_eq!(out.last_chunk::<13>(), wanted.last_chunk(), "data is left alone");
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn nothing_is_lost_whatever_comes(input in proptest::collection::vec(any::<u8>(), 0..300), step in 1_usize..50) {
            passed(&[input.clone(), frame(9, 0, &input), frame(HEADERS, 0, &input), frame(HEADERS, PADDED, &input)][1..], step);
            let (mut state, mut out) = (FrameScan::new(), Vec::new());
            state.feed(&input, &mut out);
            prop_assert!(out.len() + state.held.len() == input.len());
        }
    }
}
