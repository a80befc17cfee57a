//! What the first process of a worker's namespaces and its shim send to each other.

use muster_types::ExitStatus;

/// Bytes of a report.
pub(super) const REPORT_BYTES: usize = 8;
/// The request to stop, behind the order.
pub(super) const STOP: u8 = b'T';

/// What `init` reports to its shim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InitReport {
    /// `enter` has made it: its number as the shim sees it.
    Made(i32),
    /// Nothing is missing but the order.
    Ready,
    /// The worker ended with this code.
    Exited(i32),
    /// The worker was ended by this signal.
    Signaled(i32),
}

impl InitReport {
    pub(super) fn encode(self) -> [u8; REPORT_BYTES] {
        let (tag, value) = match self {
            InitReport::Made(pid) => (1, pid),
            InitReport::Ready => (2, 0),
            InitReport::Exited(code) => (3, code),
            InitReport::Signaled(signal) => (4, signal),
        };
        let mut bytes = [0; REPORT_BYTES];
        bytes[0] = tag;
        bytes[4..].copy_from_slice(&value.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: [u8; REPORT_BYTES]) -> Option<InitReport> {
        let value = i32::from_le_bytes(bytes[4..].try_into().ok()?);
        match bytes[0] {
            1 => Some(InitReport::Made(value)),
            2 => Some(InitReport::Ready),
            3 => Some(InitReport::Exited(value)),
            4 => Some(InitReport::Signaled(value)),
            _ => None,
        }
    }

    /// The end that it reports, if it reports one.
    pub(super) fn end(self) -> Option<ExitStatus> {
        match self {
            InitReport::Exited(code) => Some(ExitStatus::Code(code)),
            InitReport::Signaled(signal) => Some(ExitStatus::Signal(signal)),
            InitReport::Made(_) | InitReport::Ready => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_decoded_as_it_was_encoded() {
        for report in
            [InitReport::Made(77), InitReport::Ready, InitReport::Exited(-1), InitReport::Signaled(9)]
        {
            assert_eq!(InitReport::decode(report.encode()), Some(report));
        }
        assert_eq!(InitReport::decode([0; REPORT_BYTES]), None);
        assert_eq!(InitReport::Exited(3).end(), Some(ExitStatus::Code(3)));
        assert_eq!(InitReport::Ready.end(), None);
    }
}
