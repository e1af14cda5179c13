//! Calls whose arguments are values of the types of Rust.
//!
//! run N             calls `inspect`, `look` and `keep` N times; each call of `inspect` and `look` answers with a line of JSON that has what
//!                   an observer should see of it
use std::hint::black_box;
use std::io::BufRead;
use std::num::NonZeroU32;

#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(u8)]
pub enum State {
    Idle,
    Ready = 5,
    Done = 250,
}

#[derive(Debug)]
pub enum Message {
    Quit,
    Move { x: i32, y: i32 },
    Write(String),
    Number(i16),
}

pub struct Inner {
    pub label: String,
    pub level: i8,
}

pub struct Request {
    pub small: u16,
    pub name: String,
    pub state: State,
    pub tags: Vec<i32>,
    pub names: Vec<String>,
    pub tagged: Option<u32>,
    pub niche: Option<String>,
    pub text: Option<&'static str>,
    pub state_or_none: Option<State>,
    pub positive: Option<NonZeroU32>,
    pub message: Message,
    pub inner: Box<Inner>,
    pub path: &'static str,
    pub shorts: Box<[u16]>,
}

#[inline(never)]
#[unsafe(no_mangle)]
pub fn inspect(request: &Request, extra: u32) -> u64 {
    black_box(request);
    u64::from(request.small) + u64::from(black_box(extra))
}

#[inline(never)]
#[unsafe(no_mangle)]
pub fn look(text: &str, numbers: &[u64], state: State) -> State {
    black_box(text.as_ptr());
    black_box(numbers.as_ptr());
    black_box(text.len() + numbers.len());
    black_box(state)
}

#[inline(never)]
#[unsafe(no_mangle)]
pub fn keep(owned: String) -> usize {
    let length = owned.len();
    std::mem::forget(black_box(owned));
    length
}

fn option<T: std::fmt::Display>(value: &Option<T>) -> String {
    match value {
        None => r#"{"variant":"None"}"#.to_owned(),
        Some(value) => format!(r#"{{"variant":"Some","value":{value}}}"#),
    }
}

fn message(value: &Message) -> String {
    match value {
        Message::Quit => r#"{"variant":"Quit"}"#.to_owned(),
        Message::Move { x, y } => {
            black_box((x, y));
            r#"{"variant":"Move"}"#.to_owned()
        }
        Message::Write(text) => format!(r#"{{"variant":"Write","value":"{text}"}}"#),
        Message::Number(number) => format!(r#"{{"variant":"Number","value":{number}}}"#),
    }
}

fn main() {
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let count: u32 = line.strip_prefix("run ").and_then(|n| n.parse().ok()).unwrap_or(0);
        for i in 0..count {
            let state = [State::Idle, State::Ready, State::Done][i as usize % 3];
            let texts = ["", "a text", "\u{e9}t\u{e9}"];
            let request = Request {
                small: i as u16,
                name: format!("name-{i}").repeat(i as usize % 3),
                state,
                tags: (0..i as i32 % 5).map(|n| n - 2).collect(),
                names: vec![String::new(); i as usize % 4],
                tagged: (i % 2 == 0).then_some(i),
                niche: (i % 3 == 1).then(|| format!("niche-{i}")),
                text: (i % 4 == 2).then_some(texts[i as usize % 3]),
                state_or_none: (i % 2 == 1).then_some(state),
                positive: NonZeroU32::new(i % 3),
                message: match i % 4 {
                    0 => Message::Quit,
                    1 => Message::Move { x: 1, y: -1 },
                    2 => Message::Write(format!("written-{i}")),
                    _ => Message::Number(-(i as i16)),
                },
                inner: Box::new(Inner { label: format!("inner-{i}"), level: -(i as i8 % 100) }),
                path: texts[i as usize % 3],
                shorts: (0..i as u16 % 3).collect(),
            };
            let result = inspect(black_box(&request), i);
            let state_name = format!("{state:?}");
            println!(
                r#"{{"of":"inspect","small":{},"name":"{}","state":{},"tags":{:?},"names_len":{},"tagged":{},"niche":{},"text":{},"state_or_none":{},"positive":{},"message":{},"label":"{}","level":{},"path":"{}","shorts":{:?},"return":{result},"state_name":"{state_name}"}}"#,
                request.small,
                request.name,
                state as u8,
                request.tags,
                request.names.len(),
                option(&request.tagged),
                option(&request.niche.as_ref().map(|text| format!("\"{text}\""))),
                option(&request.text.map(|text| format!("\"{text}\""))),
                option(&request.state_or_none.map(|s| format!(r#"{{"number":{},"name":"{s:?}"}}"#, s as u8))),
                option(&request.positive),
                message(&request.message),
                request.inner.label,
                request.inner.level,
                request.path,
                request.shorts,
            );
            let numbers: Vec<u64> = (0..u64::from(i % 12)).map(|n| n << 40).collect();
            let seen = look(black_box(texts[i as usize % 3]), black_box(&numbers), black_box(state));
            println!(
                r#"{{"of":"look","text":"{}","numbers":{numbers:?},"state":{},"state_name":"{state_name}","same":{}}}"#,
                texts[i as usize % 3],
                state as u8,
                seen == state
            );
            black_box(keep(black_box(format!("kept-{i}"))));
        }
        println!("done");
    }
}
