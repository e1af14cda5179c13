//! The beginning of fork children: with the state of the thread that forked, or without it.

/// Whether children begin with the state of their parents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Births {
    /// No pair has a state.
    #[default]
    NotNeeded,
    /// Fork was not found; the program may still be loading its libraries.
    Absent,
    /// Fork is woven.
    Followed,
    /// Fork cannot be woven, for this reason.
    Unknown(String),
}

/// Children that began without the state of their parents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amiss {
    /// Number of children for which there was no room.
    pub missed: u32,
    /// Number of children that the C library's fork did not make.
    pub stateless: usize,
}

impl Births {
    /// The warning about a measurement whose values depend on births that the engine does not follow.
    pub fn warning(&self) -> Option<String> {
        let why = match self {
            Births::NotNeeded | Births::Followed => return None,
            Births::Absent => "the C library's fork was not found",
            Births::Unknown(why) => why,
        };
        Some(format!(
            "forked children begin without the state of their parents, so that calls that are in progress at their birth are not measured in them: {why}"
        ))
    }

    /// The warning at the beginning of a measurement. An absent fork needs none: the C library of a program that is started is mapped later.
    pub fn first_warning(&self) -> Option<String> {
        self.warning().filter(|_| *self != Births::Absent)
    }

    /// The warning about children at the end of a measurement. `amiss` returns the children that began without the state of their parents
    /// although fork is woven; `None` if they are not known.
    pub fn last_warning(&self, amiss: impl FnOnce() -> Option<Amiss>) -> Option<String> {
        match self {
            // the first warning has told the reason
            Births::NotNeeded | Births::Unknown(_) => None,
            Births::Absent => self.warning(),
            Births::Followed => {
                let Amiss { missed, stateless } = amiss()?;
                let all = u64::from(missed) + stateless as u64;
                (all > 0).then(|| {
                    format!(
                        "{all} children began without the state of their parents, because they were not made by the C library's fork or there was no room: calls in progress at their birth are not measured in them"
                    )
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_tell_why_children_begin_without_a_state() {
        let unknown = Births::Unknown("the reason".to_owned());
        for (births, at_first, at_last) in [
            (Births::NotNeeded, None, false),
            (Births::Followed, None, true),
            (Births::Absent, Some("the C library's fork was not found"), true),
            (unknown, Some("the reason"), false),
        ] {
            let warning = births.warning();
            assert_eq!(warning.is_some(), at_first.is_some(), "{births:?}");
            assert!(warning.zip(at_first).is_none_or(|(warning, why)| warning.ends_with(why)), "{births:?}");
            let last = births.last_warning(|| Some(Amiss { missed: 2, stateless: 1 }));
            assert_eq!(last.is_some(), at_last, "{births:?}");
        }
    }

    #[test]
    fn children_without_a_state_are_counted() {
        let of = |missed, stateless| Births::Followed.last_warning(|| Some(Amiss { missed, stateless }));
        assert_eq!(of(0, 0), None);
        assert!(of(2, 0).is_some_and(|warning| warning.starts_with("2 children ")));
        assert!(of(0, 1).is_some_and(|warning| warning.starts_with("1 children ")));
        assert!(of(u32::MAX, 1).is_some_and(|warning| warning.starts_with("4294967296 children ")));
        assert_eq!(Births::Followed.last_warning(|| None), None, "the data area is gone");
    }
}
