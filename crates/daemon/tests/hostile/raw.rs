//! A hostile HTTP/2 client. It writes plain bytes, because a library would prevent violations of the protocol.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RESET: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_HEADERS: u8 = 4;
pub const END_STREAM: u8 = 1;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Returns a frame (RFC 9113, section 4.1).
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Encodes an integer with a prefix (RFC 7541, section 5.1).
fn integer(first: u8, prefix: u32, mut value: usize) -> Vec<u8> {
    let mask = (1_usize << prefix) - 1;
    if value < mask {
        return vec![first | u8::try_from(value).unwrap()];
    }
    let mut out = vec![first | u8::try_from(mask).unwrap()];
    value -= mask;
    while value >= 128 {
        out.push(u8::try_from(value % 128).unwrap() | 0x80);
        value /= 128;
    }
    out.push(u8::try_from(value).unwrap());
    out
}

fn text(text: &[u8]) -> Vec<u8> {
    [integer(0, 7, text.len()), text.to_vec()].concat()
}

/// Encodes a header that enters the dynamic table (`0x40`) or does not (`0`).
pub fn header(indexing: u8, name: &str, value: &[u8]) -> Vec<u8> {
    [vec![indexing], text(name.as_bytes()), text(value)].concat()
}

/// Returns the header block of a gRPC request.
pub fn request(path: &str) -> Vec<u8> {
    [
        vec![0x83, 0x86],
        [vec![0x04], text(path.as_bytes())].concat(),
        [vec![0x01], text(b"localhost")].concat(),
        header(0, "content-type", b"application/grpc"),
        header(0, "te", b"trailers"),
    ]
    .concat()
}

/// A reference to the newest entry of the dynamic table.
pub const NEWEST: u8 = 0x80 | 62;

trait Socket: Read + Write + Send {
    fn patience(&self, time: Duration) -> io::Result<()>;
}

impl Socket for TcpStream {
    fn patience(&self, time: Duration) -> io::Result<()> {
        self.set_write_timeout(Some(time)).and_then(|()| self.set_read_timeout(Some(time)))
    }
}

impl Socket for UnixStream {
    fn patience(&self, time: Duration) -> io::Result<()> {
        self.set_write_timeout(Some(time)).and_then(|()| self.set_read_timeout(Some(time)))
    }
}

/// A connection. Its reads and writes time out after a moment, so that an attack continues whatever the daemon does.
pub struct Raw(Box<dyn Socket>);

const MOMENT: Duration = Duration::from_millis(20);

impl Raw {
    /// Connects to an address in the form that the daemon prints.
    pub fn connect(address: &str) -> io::Result<Raw> {
        let socket: Box<dyn Socket> = match address.strip_prefix("unix:") {
            Some(path) => Box::new(UnixStream::connect(Path::new(path))?),
            None => Box::new(TcpStream::connect(address.strip_prefix("http://").unwrap())?),
        };
        socket.patience(MOMENT)?;
        Ok(Raw(socket))
    }

    /// Connects as [`Raw::connect`] does, and sends the preface and settings.
    pub fn begin(address: &str, settings: &[u8]) -> io::Result<Raw> {
        let mut raw = Raw::connect(address)?;
        raw.send(&[PREFACE, &frame(SETTINGS, 0, 0, settings)].concat())?;
        Ok(raw)
    }

    /// Sends bytes. Fails if the daemon does not take them or has closed the connection.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    /// Reads available bytes, for at most a moment. Returns whether the connection is still open.
    pub fn drain(&mut self) -> bool {
        let mut buffer = [0; 64 << 10];
        match self.0.read(&mut buffer) {
            Ok(0) => false,
            Ok(_) => true,
            Err(e) => matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut),
        }
    }

    /// Waits until the daemon closes the connection. Returns whether it did within `bound`.
    pub fn closes_within(&mut self, bound: Duration) -> bool {
        let start = Instant::now();
        while start.elapsed() < bound {
            if !self.drain() {
                return true;
            }
        }
        false
    }

    /// Reads a frame. If it is a HEADERS frame of this stream, returns its header block.
    pub fn headers_of(&mut self, stream: u32) -> Option<Vec<u8>> {
        self.0.patience(Duration::from_secs(60)).unwrap();
        let mut head = [0; 9];
        self.0.read_exact(&mut head).expect("the daemon answers before it closes");
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let mut payload = vec![0; length];
        self.0.read_exact(&mut payload).expect("the daemon answers before it closes");
        (head[3] == HEADERS && head[5..9] == stream.to_be_bytes()).then_some(payload)
    }
}
