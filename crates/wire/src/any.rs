//! Arbitrary values for tests, and the test that a value comes back from its message.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use ingraft_api::MeasurementId;
use ingraft_model::{
    Activations, Avma, Distribution, Flavor, Focus, HoldTime, Offset, Pid, PointKind, Resolution, ResourcePath, Scale,
    Svma, Tid,
};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

/// Random bytes that values are made of; zeros after the last of them.
pub(crate) struct Source<'a>(&'a [u8]);

/// A type with arbitrary values.
pub(crate) trait Any {
    fn any(source: &mut Source<'_>) -> Self;
}

impl Source<'_> {
    /// No random bytes: the values are small.
    pub(crate) fn zeros() -> Self {
        Source(&[])
    }

    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    pub(crate) fn next<T: Any>(&mut self) -> T {
        T::any(self)
    }

    pub(crate) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::from(self.byte()) % all.len()]
    }
}

/// Arbitrary values as a strategy.
pub(crate) fn arbitrary<T: Any + Debug>() -> impl Strategy<Value = T> {
    proptest::collection::vec(any::<u8>(), 0..600).prop_map(|bytes| T::any(&mut Source(&bytes)))
}

/// Checks that arbitrary values are equal to what `there_and_back` makes of them.
pub(crate) fn comes_back<T: Any + Clone + Debug + PartialEq>(there_and_back: impl Fn(T) -> Result<T, String>) {
    let test = |value: T| {
        prop_assert_eq!(there_and_back(value.clone()), Ok(value));
        Ok(())
    };
    TestRunner::default().run(&arbitrary(), test).unwrap_or_else(|e| panic!("{e}"));
}

macro_rules! integers {
    ($($t:ty),*) => {$(
        impl Any for $t {
            fn any(source: &mut Source<'_>) -> Self {
                let bytes = std::array::from_fn(|_| source.byte());
                <$t>::from_le_bytes(bytes) >> (source.byte() % (<$t>::BITS as u8))
            }
        }
    )*};
}
integers!(u8, i32, i64, u32, u64, usize);

macro_rules! made_of {
    ($($t:ty: |$source:ident| $value:expr;)*) => {$(
        impl Any for $t {
            fn any($source: &mut Source<'_>) -> Self {
                $value
            }
        }
    )*};
}
made_of! {
    bool: |s| s.byte() % 2 == 1;
    f64: |s| f64::from(s.next::<u32>());
    // No text is empty: the empty text often stands for none.
    String: |s| (0..=s.byte() % 4).map(|_| s.one_of(&['a', '/', 'é', '\0', '日', '#'])).collect();
    Arc<str>: |s| s.next::<String>().into();
    Duration: |s| Duration::from_nanos(s.next());
    Svma: |s| Svma(s.next());
    Avma: |s| Avma(s.next());
    Offset: |s| Offset(s.next());
    Pid: |s| Pid(s.next());
    Tid: |s| Tid(s.next());
    MeasurementId: |s| MeasurementId(s.next());
    HoldTime: |s| HoldTime { held: s.next(), waited: s.next() };
    PointKind: |s| s.one_of(&[PointKind::Entry, PointKind::Exit, PointKind::CallBefore, PointKind::Block, PointKind::Edge]);
    Flavor: |s| Flavor::parse(&format!("f{}", s.byte())).expect("a flavor");
    Focus: |s| {
        if s.next() {
            let text = s.one_of(&["", "/Code/m/f/#0x1a->0x40", "/SyncObject/Mutex"]);
            return Focus::parse(text).expect("a focus");
        }
        let signs = ['a', 'Z', '0', '_', '%', '/', ',', '.', ':', '~', '-', 'é'];
        let mut name = || -> String { (0..=s.byte() % 5).map(|_| s.one_of(&signs)).collect() };
        let names: Vec<String> = [name(), name()].into_iter().take(usize::from(s.byte() % 3)).collect();
        let process = ResourcePath::new("Process", [s.byte().to_string()]);
        Focus::new([ResourcePath::new("Code", names), process]).expect("a focus")
    };
    Activations: |s| Activations { left: s.next(), unseen: s.next(), unrecorded: s.next(), left_by_tail_jump: s.next() };
    Distribution: |s| {
        let slots: Vec<u64> = (0..s.byte() % 9).map(|_| u64::from(s.next::<u32>())).collect();
        Distribution::from_slots(Resolution::Fine, &slots, Scale { mult: s.next(), shift: 24 })
    };
}

impl<T: Any> Any for Option<T> {
    fn any(source: &mut Source<'_>) -> Self {
        source.next::<bool>().then(|| source.next())
    }
}

impl<T: Any> Any for Vec<T> {
    fn any(source: &mut Source<'_>) -> Self {
        (0..source.byte() % 4).map(|_| source.next()).collect()
    }
}

impl<T: Any> Any for Box<T> {
    fn any(source: &mut Source<'_>) -> Self {
        Box::new(source.next())
    }
}

impl<T: Any> Any for Arc<T> {
    fn any(source: &mut Source<'_>) -> Self {
        Arc::new(source.next())
    }
}

impl<T: Any, U: Any> Any for (T, U) {
    fn any(source: &mut Source<'_>) -> Self {
        (source.next(), source.next())
    }
}

impl<T: Any, const N: usize> Any for [T; N] {
    fn any(source: &mut Source<'_>) -> Self {
        std::array::from_fn(|_| source.next())
    }
}
