//! Prefetches memory before it is needed.
//!
//! Hundreds of other events pass between two events of a stream, so the state of the stream is no longer in the CPU
//! caches. Without a prefetch each cache line would be a separate miss; with it, the loads overlap.

/// Prefetches all cache lines of `value` without waiting for them. Does nothing on targets other than x86-64.
#[inline]
pub fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        const LINE: usize = 64;
        let start = std::ptr::from_ref(value).cast::<i8>();
        let last = size_of::<T>().saturating_sub(1);
        for offset in (0..last).step_by(LINE).chain([last]) {
            // SAFETY: a prefetch reads nothing and never faults (and SSE is part of x86-64).
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(offset)) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
