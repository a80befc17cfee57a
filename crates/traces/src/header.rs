//! `traceparent` and `tracestate`, as the metadata of calls has them.

use muster_types::TraceParent;

/// The span of the caller.
pub const TRACE_PARENT: &str = "traceparent";
/// What systems on the way add to it; passed on as it came.
pub const TRACE_STATE: &str = "tracestate";
/// The variable by which a program is told of the span that started it.
pub const VARIABLE: &str = "TRACEPARENT";
/// Bytes of `tracestate` that are passed on; a longer one is left out.
pub const STATE_BYTES_MAX: usize = 512;

/// The span that the values of [`TRACE_PARENT`] name: none unless there is one value that keeps the rules. What breaks them is
/// ignored: no call is refused for it.
pub fn parent<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Option<TraceParent> {
    let mut values = values.into_iter();
    match (values.next(), values.next()) {
        (Some(value), None) => TraceParent::read(value),
        _ => None,
    }
}

/// The values of [`TRACE_STATE`] as one; none where there is none, or where they are too long or no visible text.
pub fn state<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Option<String> {
    let mut joined = String::new();
    for value in values {
        let text = std::str::from_utf8(value).ok()?.trim();
        if joined.len() + text.len() >= STATE_BYTES_MAX {
            return None;
        }
        if !joined.is_empty() && !text.is_empty() {
            joined.push(',');
        }
        joined.push_str(text);
    }
    let is_text = joined.bytes().all(|byte| (0x20..0x7f).contains(&byte));
    (!joined.is_empty() && is_text).then_some(joined)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &[u8] = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn one_value_that_keeps_the_rules_is_a_parent() {
        assert_eq!(parent([TEXT]), TraceParent::read(TEXT));
        assert!(parent([TEXT]).is_some());
        assert_eq!(parent([TEXT, TEXT]), None, "which of them nobody knows");
        assert_eq!(parent([]), None);
        assert_eq!(parent([&TEXT[1..]]), None);
    }

    #[test]
    fn states_are_joined_in_order_and_bounded() {
        let of = |values: &[&str]| state(values.iter().map(|value| value.as_bytes()));
        assert_eq!(of(&["a=1", " b=2"]).as_deref(), Some("a=1,b=2"));
        assert_eq!(of(&["", "b=2"]).as_deref(), Some("b=2"));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&["a=\u{1}"]), None);
        assert_eq!(of(&["ä=1"]), None);
        assert_eq!(of(&[&"a".repeat(STATE_BYTES_MAX)]), None);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(trace: [u8; 16], span: [u8; 8], flags: u8) {
            if let Some(parent) = TraceParent::new(trace, span, flags) {
                prop_assert_eq!(TraceParent::parse(&parent.to_string()), Ok(parent));
                prop_assert_eq!(parent.to_string().len(), TEXT.len());
            }
        }

        #[test]
        fn what_is_taken_is_written_alike((place, byte) in (0..TEXT.len(), any::<u8>())) {
            let mut near = TEXT.to_vec();
            near[place] = byte;
            if let Some(parent) = TraceParent::read(&near) {
                let text = parent.to_string();
                prop_assert_eq!(&text.as_bytes()[..53], &near[..53]);
            }
        }

        #[test]
        fn no_bytes_make_it_panic(values in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..600), 0..4)) {
            let slices = || values.iter().map(Vec::as_slice);
            let _ = parent(slices());
            if let Some(state) = state(slices()) {
                prop_assert!(state.len() <= STATE_BYTES_MAX);
            }
        }
    }
}
