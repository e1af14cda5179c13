//! Values of many kinds that are made and dropped, and calls that end by a panic: functions full of landing pads, and short blocks behind calls.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::rc::Rc;
use std::sync::Arc;

trait Shape {
    fn area(&self) -> u64;
    fn name(&self) -> String;
}

struct Listed(u64, Vec<String>);

struct Shared {
    numbers: Rc<RefCell<Vec<u64>>>,
    inner: Option<Box<Listed>>,
    name: Arc<String>,
}

impl Shape for Listed {
    fn area(&self) -> u64 {
        self.0 * self.1.len() as u64
    }

    fn name(&self) -> String {
        format!("listed {}", self.0)
    }
}

impl Shape for Shared {
    fn area(&self) -> u64 {
        self.numbers.borrow().iter().sum::<u64>() + self.inner.as_ref().map_or(0, |inner| inner.area())
    }

    fn name(&self) -> String {
        format!("shared {}", self.name)
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        assert_ne!(self.0, u64::MAX, "no number is so large");
    }
}

#[inline(never)]
fn make(n: u64, name: &Arc<String>) -> Box<dyn Shape> {
    if n % 3 == 0 {
        return Box::new(Listed(n, (0..n % 7).map(|n| n.to_string()).collect()));
    }
    let inner = (n % 4 == 0).then(|| Box::new(Listed(n, vec!["one".into(); (n % 3) as usize])));
    Box::new(Shared { numbers: Rc::new(RefCell::new((0..n % 5).collect())), inner, name: name.clone() })
}

#[inline(never)]
fn parse(text: &str) -> Result<u64, std::num::ParseIntError> {
    let number: u64 = text.trim().parse()?;
    Ok(number + 1)
}

#[inline(never)]
fn risky(n: u64) -> u64 {
    if n % 50 == 0 {
        panic!("at {n}");
    }
    let numbers: Vec<u64> = (0..n % 9).collect();
    numbers.get((n % 3) as usize).copied().unwrap_or(7)
}

fn main() {
    std::panic::set_hook(Box::new(|_| {}));
    let name = Arc::new(String::from("name"));
    let mut shapes: BTreeMap<String, Box<dyn Shape>> = BTreeMap::new();
    let (mut replaced, mut total, mut text) = (VecDeque::new(), 0, String::new());
    for n in 0..2000u64 {
        let shape = make(n, &name);
        total += shape.area();
        replaced.extend(shapes.insert(shape.name(), shape));
        if replaced.len() > 10 {
            replaced.pop_front();
        }
        total += parse(if n % 6 == 0 { "none" } else { " 42 " }).unwrap_or(3);
        write!(text, "{n} ").expect("memory");
        if n % 100 == 0 {
            text.clear();
            shapes.retain(|name, _| name.len() % 2 == 0);
        }
        total += std::panic::catch_unwind(|| risky(n)).unwrap_or(5);
        let mut words: Vec<String> = (0..n % 11).map(|k| format!("{:x}", k * n)).collect();
        words.sort();
        words.dedup();
        total += words.concat().len() as u64;
    }
    println!("{total} {}", shapes.len());
}
