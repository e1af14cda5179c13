//! Synchronisation objects of a program: the kind of each, and whether it was destroyed.

/// Kind of a synchronisation object of the pthread library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names say it")]
pub enum ObjectKind {
    Mutex,
    RwLock,
    Semaphore,
    CondVar,
    Barrier,
    SpinLock,
}

impl ObjectKind {
    /// All kinds.
    pub const ALL: [ObjectKind; 6] = [
        ObjectKind::Mutex,
        ObjectKind::RwLock,
        ObjectKind::Semaphore,
        ObjectKind::CondVar,
        ObjectKind::Barrier,
        ObjectKind::SpinLock,
    ];

    /// Name of the kind in a focus, below /SyncObject.
    pub const fn name(self) -> &'static str {
        match self {
            ObjectKind::Mutex => "Mutex",
            ObjectKind::RwLock => "RwLock",
            ObjectKind::Semaphore => "Semaphore",
            ObjectKind::CondVar => "CondVar",
            ObjectKind::Barrier => "Barrier",
            ObjectKind::SpinLock => "SpinLock",
        }
    }

    /// Returns the kind with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// State of a synchronisation object, as its last mark says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectState {
    /// Kind of the object.
    pub kind: ObjectKind,
    /// Whether the program has destroyed the object and has done nothing to its address since.
    pub retired: bool,
}

/// The bits of a mark that hold the state.
const STATE: i64 = 0xf;

/// Mask of the time stamp counter in a mark; the other bits hold the state. The order of two marks is right if they are at least 16 ticks
/// apart. That is less time than one processor needs to see the effect of another one.
pub const TIME_MASK: i64 = !STATE;

impl ObjectState {
    /// Bits of a mark for this state, to be combined with the time; never 0.
    pub const fn bits(self) -> i64 {
        2 * (self.kind as i64 + 1) + self.retired as i64
    }

    /// Returns the state that a mark holds; `None` if its bits are no state.
    pub fn of_mark(mark: i64) -> Option<Self> {
        let number = usize::try_from((mark & STATE) / 2).ok()?.checked_sub(1)?;
        Some(ObjectState { kind: *ObjectKind::ALL.get(number)?, retired: mark & 1 != 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_tells_the_state() {
        for kind in ObjectKind::ALL {
            assert_eq!(ObjectKind::named(kind.name()), Some(kind));
            for retired in [false, true] {
                let state = ObjectState { kind, retired };
                assert_eq!(state.bits() & TIME_MASK, 0);
                for time in [0, 12_345_678, i64::MAX] {
                    assert_eq!(ObjectState::of_mark(time & TIME_MASK | state.bits()), Some(state));
                }
            }
        }
        assert_eq!([0, 1, 14, 15].map(ObjectState::of_mark), [None; 4]);
    }
}
