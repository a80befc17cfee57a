//! Texts of agents, cut to what a record holds.

use alloc::string::String;

/// The longest start of a text that has at most `bytes_max` bytes, cut between characters.
pub(crate) fn cut(mut text: String, bytes_max: usize) -> String {
    if text.len() > bytes_max {
        let mut end = bytes_max;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    text
}
