//! Admission of a request: which of its pairs are there already and grow, which join a group, and which are woven anew.

use std::sync::Arc;

use ingraft_model::Instrumentation;
use rustc_hash::FxHashSet;

use crate::error::Error;
use crate::weaving::cost::Metered;

use super::Pairs;
use super::counters::CounterPool;
use super::groups::{Fresh, WriteWord, form};
use super::key::PairKey;
use super::pair::{Pair, Unloaded};

/// A pair with its code, and the first counter of each of its variables.
pub type BoundPair = (PairKey, Instrumentation, Arc<[u32]>);

/// The pairs of a request, by what must be woven for them.
#[derive(Debug, Default)]
pub struct AdmittedPairs {
    /// Pairs to be woven anew, in groups where they share their code.
    pub fresh: Vec<Fresh>,
    /// More code for pairs that are there: functions of modules that were loaded since.
    pub more: Vec<BoundPair>,
    /// Pairs that have joined groups. If the insertion fails, they must part again.
    pub joined: Vec<PairKey>,
    /// Whether all pairs of the request are new.
    pub all_new: bool,
}

impl Pairs {
    /// Admits the pairs of a request. `limit` is the number of counters of a shard. Fails if an existing pair needs more counters than are free;
    /// then everything is as before.
    pub fn admit(
        &mut self,
        wanted: impl Iterator<Item = (PairKey, Instrumentation)>,
        counters: &mut CounterPool,
        limit: u32,
        write: WriteWord<'_>,
    ) -> Result<AdmittedPairs, Error> {
        let (mut admitted, mut made) = (AdmittedPairs::default(), Metered::default());
        let (mut unmet, mut seen) = (Vec::new(), FxHashSet::default());
        for (key, instrumentation) in wanted {
            if !seen.insert(key.clone()) {
                continue;
            }
            if !self.contains_key(&key) && self.join(&key, &instrumentation, write) {
                admitted.joined.push(key.clone());
            }
            let Some(pair) = self.all.get_mut(&key) else {
                unmet.push((key, instrumentation));
                continue;
            };
            match pair.more(instrumentation, &mut made, counters, limit) {
                Ok(more) => admitted.more.extend(more.map(|(code, counters)| (key, code, counters.into()))),
                Err(error) => {
                    self.part(&admitted.joined, write);
                    return Err(error);
                }
            }
        }
        admitted.all_new = unmet.len() == seen.len();
        admitted.fresh = form(unmet, limit.saturating_sub(counters.used()));
        for fresh in &mut admitted.fresh {
            fresh.meters.apply(&mut fresh.instrumentation, &mut made);
        }
        Ok(admitted)
    }
}

impl Pair {
    /// The code that the pair lacks, with the first counter of each variable; `None` if it lacks nothing. An existing pair grows by the functions
    /// of modules that were loaded since. Even a pair that has all its functions may need such a module, because exceptions and longjmp land
    /// there.
    fn more(
        &mut self,
        mut code: Instrumentation,
        made: &mut Metered,
        counters: &mut CounterPool,
        limit: u32,
    ) -> Result<Option<(Instrumentation, Vec<u32>)>, Error> {
        // A probe that was taken out has told all that it can, so it does not come again.
        if self.unloaded == Unloaded::Gone {
            self.unloaded = Unloaded::Back;
        }
        let known = self.known_functions();
        code.insertions.retain(|i| self.probes.is_empty() && !known.contains(&i.function));
        if !code.insertions.is_empty() {
            let counters = self.counters_for(&mut code, made, counters, limit)?;
            return Ok(Some((code, counters)));
        }
        Ok(self.restores.then(|| (code, self.counters.clone())))
    }
}

#[cfg(test)]
mod tests {
    use ingraft_model::{Expr, PointKind, Shape, Stmt, VariableId, VariableKind};

    use super::*;
    use crate::error::Reason;
    use crate::pairs::tests::{counting, function, group_of, insertion, instrumentation, key, objects, variable};

    /// Code that counts the calls of these functions.
    fn counts(functions: &[u32]) -> Instrumentation {
        let mut one = instrumentation(vec![variable(VariableKind::Counter, Shape::Counter)]);
        let count = || vec![Stmt::Add(VariableId(0), Expr::Const(1))];
        let at_entry = |n: &u32| insertion(function(0, *n), PointKind::Entry, count());
        one.insertions = functions.iter().map(at_entry).collect();
        one
    }

    /// Code that adds the first argument, so that its hits need a counter of their own.
    fn adds(functions: &[u32]) -> Instrumentation {
        let mut one = counts(&[]);
        let add = || vec![Stmt::Add(VariableId(0), Expr::Arg(0))];
        one.insertions = functions.iter().map(|n| insertion(function(0, *n), PointKind::Entry, add())).collect();
        one
    }

    fn admit(pairs: &mut Pairs, wanted: Vec<(&str, Instrumentation)>) -> AdmittedPairs {
        let mut counters = CounterPool::starting_at(50);
        let wanted = wanted.into_iter().map(|(name, code)| (key(name), code));
        pairs.admit(wanted, &mut counters, 1000, &mut |_, _| true).expect("room")
    }

    fn there(functions: &[(u32, u64)]) -> Pairs {
        let mut pairs = Pairs::default();
        let mut pair = counting(7, function(0, 0), &[]);
        pair.minis = functions.iter().map(|(n, id)| (function(0, *n), *id)).collect();
        pairs.insert(key("a"), pair);
        pairs
    }

    #[test]
    fn each_new_pair_is_woven_once() {
        let mut pairs = there(&[(1, 1)]);
        let wanted = vec![("b", counts(&[1])), ("c", counts(&[2])), ("b", counts(&[1]))];
        let admitted = admit(&mut pairs, wanted);
        let keys: Vec<&PairKey> = admitted.fresh.iter().map(|fresh| &fresh.key).collect();
        assert_eq!(keys, [&key("b"), &key("c")]);
        assert!(admitted.all_new && admitted.more.is_empty() && admitted.joined.is_empty());
        assert_eq!(pairs.values().count(), 1, "nothing is woven yet");
        assert!(!admit(&mut pairs, vec![("a", counts(&[1])), ("b", counts(&[1]))]).all_new);
        assert!(admit(&mut pairs, Vec::new()).all_new, "no pair is an old one");
    }

    #[test]
    fn a_pair_grows_by_the_functions_that_it_lacks() {
        let mut pairs = there(&[(1, 1)]);
        for (wanted, more) in [(&[1][..], None), (&[1, 2], Some(vec![2])), (&[3, 2], Some(vec![3, 2])), (&[], None)] {
            let admitted = admit(&mut pairs, vec![("a", counts(wanted))]);
            let functions = |(_, code, counters): &BoundPair| {
                assert_eq!(**counters, [7]);
                code.insertions.iter().map(|i| i.function.function).collect::<Vec<_>>()
            };
            assert_eq!(admitted.more.first().map(functions), more, "{wanted:?}");
            assert!(admitted.fresh.is_empty() && !admitted.all_new);
        }
    }

    #[test]
    fn a_pair_that_restores_a_state_looks_for_landings_in_new_modules() {
        let mut pairs = there(&[(1, 1)]);
        pairs.get_mut(&key("a")).expect("a pair").restores = true;
        let admitted = admit(&mut pairs, vec![("a", counts(&[1]))]);
        let [(_, code, counters)] = admitted.more.as_slice() else { panic!("{admitted:?}") };
        assert!(code.insertions.is_empty());
        assert_eq!(**counters, [7]);
    }

    #[test]
    fn a_probe_does_not_come_again() {
        for (before, after) in
            [(Unloaded::No, Unloaded::No), (Unloaded::Gone, Unloaded::Back), (Unloaded::Back, Unloaded::Back)]
        {
            let mut pairs = there(&[]);
            let pair = pairs.get_mut(&key("a")).expect("a pair");
            (pair.probes, pair.unloaded) = (vec![Ok(1)], before);
            assert!(admit(&mut pairs, vec![("a", counts(&[1, 2]))]).more.is_empty());
            assert_eq!(pairs.get(&key("a")).expect("a pair").unloaded, after);
        }
    }

    #[test]
    fn hits_get_a_counter_if_the_code_does_not_count_them() {
        let mut pairs = there(&[(1, 1)]);
        let admitted = admit(&mut pairs, vec![("b", adds(&[1])), ("c", counts(&[1])), ("a", adds(&[1, 2]))]);
        let variables: Vec<usize> = admitted.fresh.iter().map(|fresh| fresh.instrumentation.variables.len()).collect();
        assert_eq!(variables, [2, 1]);
        // the pair that is there gets one for its new code
        assert_eq!(*admitted.more[0].2, [7, 50]);
        assert_eq!(pairs.get(&key("a")).expect("a pair").counters, [7, 50]);
    }

    #[test]
    fn similar_pairs_share_their_code_with_old_or_new_ones() {
        let mut pairs = group_of(&[8, 16, 24, 32]);
        let mut counters = CounterPool::starting_at(200);
        let admitted = pairs.admit(objects(&[8, 40]).into_iter(), &mut counters, 1000, &mut |_, _| true).expect("room");
        assert_eq!(admitted.joined, [objects(&[40]).remove(0).0]);
        assert!(admitted.fresh.is_empty() && admitted.more.is_empty() && !admitted.all_new);
        assert_eq!(pairs.values().count(), 5);
        // without a writable table, pairs form a group of their own if there is room for one
        let mut fresh = |limit, wanted: &[u64]| {
            let admitted = pairs.admit(objects(wanted).into_iter(), &mut counters, limit, &mut |_, _| false);
            admitted.expect("room").fresh.iter().map(|fresh| fresh.forming.is_some()).collect::<Vec<_>>()
        };
        assert_eq!(fresh(248, &[48, 56, 64, 72]), [true]);
        assert_eq!(fresh(247, &[80, 88, 96, 104]), [false; 4]);
    }

    #[test]
    fn pairs_part_from_their_groups_if_another_pair_finds_no_counters() {
        let mut pairs = group_of(&[8, 16, 24, 32]);
        pairs.insert(key("a"), counting(7, function(0, 1), &[1]));
        let wanted = objects(&[40]).into_iter().chain([(key("a"), adds(&[1, 2]))]);
        let mut words = Vec::new();
        let mut counters = CounterPool::starting_at(50);
        let admitted = pairs.admit(wanted, &mut counters, 50, &mut |_, word| {
            words.push(word);
            true
        });
        assert_eq!(admitted.map(drop).map_err(|e| e.reason), Err(Reason::TooManyCounters));
        assert_eq!(words, [40, u64::MAX], "its key was listed, and retired");
        assert_eq!(pairs.values().count(), 5);
        assert!(!pairs.contains_key(&objects(&[40]).remove(0).0));
    }
}
