//! Measured values of suspected parts. Sums of 128 bits are two numbers each.

use ingraft_api::{MeasuredSuspect, MeasuredSuspects, Suspect};
use ingraft_report::CallMoments;
use v1::suspect::Part as Wire;

use crate::field::{FieldError, WireField, read};
use crate::v1;

messages! {
    MeasuredSuspect => MeasuredSuspect { suspect, refused, inside, missed }
}

nested! {
    Suspect => Suspect
}

impl From<Suspect> for v1::Suspect {
    fn from(suspect: Suspect) -> Self {
        v1::Suspect {
            part: Some(match suspect {
                Suspect::CallSite(at) => Wire::CallSite(at.to_wire()),
                Suspect::Loop(at) => Wire::Loop(at.to_wire()),
            }),
        }
    }
}

impl TryFrom<v1::Suspect> for Suspect {
    type Error = FieldError;

    fn try_from(suspect: v1::Suspect) -> Result<Self, FieldError> {
        Ok(match suspect.part.ok_or_else(|| FieldError::missing("part"))? {
            Wire::CallSite(at) => Suspect::CallSite(read("call_site", at)?),
            Wire::Loop(at) => Suspect::Loop(read("loop", at)?),
        })
    }
}

impl From<MeasuredSuspects> for v1::MeasuredSuspects {
    fn from(measured: MeasuredSuspects) -> Self {
        let MeasuredSuspects { suspects, moments, tick_ns, counts, recursive } = measured;
        let CallMoments { calls, sums, products } = moments;
        v1::MeasuredSuspects {
            suspects: suspects.to_wire(),
            calls,
            sums: halves(&sums),
            products: halves(&products),
            tick_ns,
            counts: Some(counts.into()),
            recursive,
        }
    }
}

impl TryFrom<v1::MeasuredSuspects> for MeasuredSuspects {
    type Error = FieldError;

    fn try_from(measured: v1::MeasuredSuspects) -> Result<Self, FieldError> {
        let v1::MeasuredSuspects { suspects, calls, sums, products, tick_ns, counts, recursive } = measured;
        let suspects: Vec<MeasuredSuspect> = read("suspects", suspects)?;
        let (sums, products) = (whole("sums", &sums)?, whole("products", &products)?);
        let values = 1 + suspects.iter().filter(|suspect| suspect.refused.is_none()).count();
        if sums.len() != values {
            return Err(FieldError::new("sums", format!("has not two numbers for each of {values} values")));
        }
        if products.len() != CallMoments::products_of(values) {
            return Err(FieldError::new("products", "has not two numbers for each two values"));
        }
        let counts = counts.ok_or_else(|| FieldError::missing("counts"))?;
        let counts = counts.try_into().map_err(|e: FieldError| e.inside("counts"))?;
        Ok(MeasuredSuspects { suspects, moments: CallMoments { calls, sums, products }, tick_ns, counts, recursive })
    }
}

/// The halves of numbers, the upper ones first.
fn halves(numbers: &[u128]) -> Vec<u64> {
    numbers.iter().flat_map(|number| [(number >> 64) as u64, *number as u64]).collect()
}

/// The numbers that have these halves.
fn whole(name: &str, halves: &[u64]) -> Result<Vec<u128>, FieldError> {
    let (pairs, []) = halves.as_chunks::<2>() else { return Err(FieldError::new(name, "has half a number")) };
    Ok(pairs.iter().map(|[upper, lower]| u128::from(*upper) << 64 | u128::from(*lower)).collect())
}

#[cfg(test)]
mod tests {
    use ingraft_api::CallNumbers;

    use super::*;
    use crate::any::{Any, Source, comes_back};

    impl Any for Suspect {
        fn any(s: &mut Source<'_>) -> Self {
            if s.next() { Suspect::CallSite(s.next()) } else { Suspect::Loop(s.next()) }
        }
    }

    impl Any for MeasuredSuspects {
        fn any(s: &mut Source<'_>) -> Self {
            let suspects: Vec<MeasuredSuspect> = s.next();
            let values = 1 + suspects.iter().filter(|suspect| suspect.refused.is_none()).count();
            let mut number = || u128::from(s.next::<u64>()) << 64 | u128::from(s.next::<u64>());
            let sums = (0..values).map(|_| number()).collect();
            let products = (0..CallMoments::products_of(values)).map(|_| number()).collect();
            let moments = CallMoments { calls: s.next(), sums, products };
            let counts: CallNumbers = s.next();
            MeasuredSuspects { suspects, moments, tick_ns: 0.25, counts, recursive: s.next() }
        }
    }

    #[test]
    fn measured_suspects_come_back() {
        comes_back(|measured: MeasuredSuspects| {
            v1::MeasuredSuspects::from(measured).try_into().map_err(|e: FieldError| e.to_string())
        });
    }

    #[test]
    fn wrong_sums_are_refused() {
        let path = |sums: Vec<u64>, products: Vec<u64>| {
            let message =
                v1::MeasuredSuspects { sums, products, counts: Some(Default::default()), ..Default::default() };
            MeasuredSuspects::try_from(message).map_err(|e| e.path)
        };
        assert!(path(vec![0, 1], vec![0, 1]).is_ok());
        assert_eq!(path(vec![0], vec![0, 1]), Err("sums".to_owned()));
        assert_eq!(path(vec![0, 1, 2, 3], vec![0, 1]), Err("sums".to_owned()));
        assert_eq!(path(vec![0, 1], vec![]), Err("products".to_owned()));
    }
}
