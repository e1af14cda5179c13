//! The vector state that XSAVE saves on this machine.

use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::OnceLock;

use ingraft_model::VectorState;

/// CPUID leaf 1, ecx: the kernel has enabled XSAVE.
const OSXSAVE: u32 = 1 << 27;
/// CPUID leaf that describes XSAVE, and the last component that it can describe.
const LEAF: u32 = 0xd;
const LAST: u32 = 62;

/// State components that generated code saves around calls of a target's functions; `None` if this processor cannot save them. The result
/// has all components of the processor, enabled by the kernel or not. XSAVE omits disabled ones by itself, and the area is then larger than
/// needed.
pub fn vector_state() -> Option<VectorState> {
    static HERE: OnceLock<Option<VectorState>> = OnceLock::new();
    *HERE.get_or_init(look)
}

fn look() -> Option<VectorState> {
    if __cpuid(0).eax < LEAF || __cpuid(1).ecx & OSXSAVE == 0 {
        return None;
    }
    let all = __cpuid_count(LEAF, 0);
    let components = (u64::from(all.eax) | u64::from(all.edx) << 32) & VectorState::COMPONENTS;
    // eax is the size and ebx the offset in the standard format, in bytes (SDM vol. 1, 13.2)
    let end = |n: u32| {
        let one = __cpuid_count(LEAF, n);
        one.ebx.saturating_add(one.eax)
    };
    let ends = (2..=LAST).filter(|n| components & 1 << n != 0).map(end);
    let bytes = ends.chain([VectorState::LEAST]).max()?;
    Some(VectorState { components, bytes }).filter(VectorState::is_sound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn avx_and_avx_512_are_kept_where_they_are() {
        let Some(state) = vector_state() else { return };
        if is_x86_feature_detected!("avx") {
            assert!(state.components & 4 != 0 && state.bytes >= 576 + 256);
        }
        if is_x86_feature_detected!("avx512f") {
            assert!(state.components & 0xe0 == 0xe0 && state.bytes >= 576 + 256 + 64 + 512 + 1024);
        }
        assert!(state.is_sound());
    }
}
