//! Calls for memory before it is needed.
//!
//! Between two events of a stream hundreds of others have passed, and what belongs to it has left the processor's caches.
//! Touched piece by piece, each piece would be waited for; called for at once, they come while the first are at work.

/// Calls for all cache lines of `value`, and waits for none. Elsewhere than on x86-64 it does nothing.
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
