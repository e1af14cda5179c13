//! Numbers in the names of resources and in data.

/// Parses a whole text as a decimal number, or as a hexadecimal one if it begins with `0x`; a `-` may precede it.
pub(crate) fn parse_number(text: &str) -> Option<i64> {
    let (minus, digits) = text.strip_prefix('-').map_or((false, text), |d| (true, d));
    let value = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok()?.cast_signed(),
        None => digits.parse().ok()?,
    };
    Some(if minus { value.wrapping_neg() } else { value })
}
