//! Measurements that are inserted in targets, and their costs.

use ingraft_api::{Costs, Inserted, PairCost};

use crate::field::{FieldError, WireField, read};
use crate::v1;

messages! {
    PairCost => PairCost { pair, hit_ns, hits_per_s, cost_ns_per_s, observed_ns }
}

impl From<Inserted> for v1::Inserted {
    fn from(inserted: Inserted) -> Self {
        let known = inserted.costs.is_some();
        let costs = inserted.costs.unwrap_or_default();
        v1::Inserted {
            pid: inserted.pid.0,
            holder: inserted.holder,
            ours: inserted.ours,
            points: inserted.points,
            code_bytes: inserted.code_bytes,
            since_ns: inserted.since_ns,
            identity: inserted.identity,
            cost_ns_per_s: known.then_some(costs.cost_ns_per_s),
            observed_ns_per_s: costs.observed_ns_per_s,
            observed_of_target: costs.of_target,
            pair_count: costs.pair_count,
            pairs: costs.pairs.to_wire(),
            measurements: inserted.measurements.to_wire(),
            kept_measurements: inserted.kept_measurements.to_wire(),
            kept: inserted.kept,
            warnings: inserted.warnings,
        }
    }
}

impl TryFrom<v1::Inserted> for Inserted {
    type Error = FieldError;

    fn try_from(inserted: v1::Inserted) -> Result<Self, FieldError> {
        let pairs = read("pairs", inserted.pairs)?;
        let costs = inserted.cost_ns_per_s.map(|cost_ns_per_s| Costs {
            cost_ns_per_s,
            observed_ns_per_s: inserted.observed_ns_per_s,
            of_target: inserted.observed_of_target,
            pair_count: inserted.pair_count,
            pairs,
        });
        Ok(Inserted {
            pid: read("pid", inserted.pid)?,
            holder: inserted.holder,
            ours: inserted.ours,
            points: inserted.points,
            code_bytes: inserted.code_bytes,
            since_ns: inserted.since_ns,
            identity: inserted.identity,
            costs,
            measurements: read("measurements", inserted.measurements)?,
            kept_measurements: read("kept_measurements", inserted.kept_measurements)?,
            kept: inserted.kept,
            warnings: inserted.warnings,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::any::{Any, Source, comes_back};

    impl Any for Costs {
        fn any(s: &mut Source<'_>) -> Self {
            Costs {
                cost_ns_per_s: s.next(),
                observed_ns_per_s: s.next(),
                of_target: s.next(),
                pair_count: s.next(),
                pairs: s.next(),
            }
        }
    }

    impl Any for Inserted {
        fn any(s: &mut Source<'_>) -> Self {
            Inserted {
                pid: s.next(),
                holder: s.next(),
                ours: s.next(),
                points: s.next(),
                code_bytes: s.next(),
                since_ns: s.next(),
                identity: s.next(),
                costs: s.next(),
                measurements: s.next(),
                kept_measurements: s.next(),
                kept: s.next(),
                warnings: s.next(),
            }
        }
    }

    #[test]
    fn inserted_measurements_come_back() {
        comes_back(|one: Inserted| v1::Inserted::from(one).try_into().map_err(|e: FieldError| e.to_string()));
    }
}
