//! Conversations with servers in their own protocols, as bytes.

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};

use crate::BOUND;

/// One step of a conversation: the bytes to send, and the end of the answer.
pub(super) struct Step {
    pub(super) send: Vec<u8>,
    pub(super) until: End,
}

/// End of the answer to one step.
pub(super) enum End {
    /// This many bytes have arrived.
    Bytes(usize),
    /// The answer ends with these bytes.
    Suffix(Vec<u8>),
    /// The server closes the connection. The answer begins behind the header of HTTP, which holds a date.
    Page,
}

/// Holds a conversation on a new TCP connection. Returns all answers.
pub(super) fn over_tcp(port: u16, steps: &[Step]) -> Vec<u8> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connect to the server");
    stream.set_read_timeout(Some(BOUND)).expect("set a bound");
    let mut answers = Vec::new();
    for step in steps {
        stream.write_all(&step.send).expect("send to the server");
        let (mut answer, mut byte) = (Vec::new(), [0]);
        match &step.until {
            End::Bytes(length) => {
                answer.resize(*length, 0);
                stream.read_exact(&mut answer).expect("an answer of the server");
            }
            End::Suffix(suffix) => {
                while !answer.ends_with(suffix) {
                    stream.read_exact(&mut byte).unwrap_or_else(|e| panic!("{e} after {}", answer.escape_ascii()));
                    answer.extend(byte);
                }
            }
            End::Page => {
                stream.read_to_end(&mut answer).expect("an answer of the server");
                let header = answer.windows(4).position(|w| w == b"\r\n\r\n").expect("a header");
                let status = answer.split(|byte| *byte == b' ').nth(1);
                assert_eq!(status, Some(&b"200"[..]), "the server answered {}", answer.escape_ascii());
                answer.drain(..header + 4);
            }
        }
        answers.append(&mut answer);
    }
    answers
}

/// Sends a datagram and returns the answer.
pub(super) fn over_udp(port: u16, send: &[u8]) -> std::io::Result<Vec<u8>> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.set_read_timeout(Some(BOUND))?;
    socket.connect(("127.0.0.1", port))?;
    socket.send(send)?;
    let mut answer = vec![0; 4096];
    let length = socket.recv(&mut answer)?;
    answer.truncate(length);
    Ok(answer)
}
