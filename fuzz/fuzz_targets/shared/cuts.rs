//! Cuts input into slices. The bytes themselves choose where, so that a plain message is a seed.

/// The widest slices that an input is cut into, in turn.
pub const WIDTHS: [usize; 5] = [usize::MAX, 1, 2, 7, 64];

/// `input` in slices of 1 to `widest` bytes.
pub fn cut(input: &[u8], widest: usize) -> impl Iterator<Item = &[u8]> {
    let mut draw = input.len();
    let mut rest = input;
    std::iter::from_fn(move || {
        let first = *rest.first()?;
        draw = draw.wrapping_mul(31).wrapping_add(usize::from(first) + 1);
        let width = if widest == usize::MAX { rest.len() } else { draw % widest + 1 };
        let (slice, after) = rest.split_at(width.min(rest.len()));
        rest = after;
        Some(slice)
    })
}
