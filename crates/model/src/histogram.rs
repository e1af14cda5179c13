//! Log-linear buckets: every power of two is divided into equally wide ones, so that a value is known to within
//! 1/[`PER_OCTAVE`] whatever its size, and counts are exact.

/// Bits that tell the buckets of one power of two apart.
pub const SUB_BITS: u32 = 5;
/// Buckets of one power of two.
pub const PER_OCTAVE: u32 = 1 << SUB_BITS;
/// Values of so many bits or more are in the last bucket: as ticks of 3 GHz an hour and a half.
pub const VALUE_BITS: u32 = 44;
/// Number of buckets.
pub const BUCKETS: u32 = (VALUE_BITS - SUB_BITS + 1) * PER_OCTAVE;

/// The bucket of a value.
pub fn bucket_of(value: u64) -> u32 {
    let value = value.min((1 << VALUE_BITS) - 1);
    let octave = (value | u64::from(PER_OCTAVE)).ilog2() - SUB_BITS;
    octave * PER_OCTAVE + (value >> octave) as u32
}

/// The values of a bucket: the first, and the first behind it (of the last bucket: of values that are not cut).
pub fn bounds(bucket: u32) -> (u64, u64) {
    let octave = (bucket / PER_OCTAVE).saturating_sub(1);
    let first = u64::from(bucket - octave * PER_OCTAVE) << octave;
    (first, first + (1 << octave))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_tile_the_values() {
        let mut next = 0;
        for bucket in 0..BUCKETS {
            let (first, end) = bounds(bucket);
            assert_eq!(first, next);
            assert_eq!((bucket_of(first), bucket_of(end - 1)), (bucket, bucket));
            assert!((end - first) * u64::from(PER_OCTAVE) <= first.max(u64::from(PER_OCTAVE)));
            next = end;
        }
        assert_eq!(next, 1 << VALUE_BITS);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }
}
