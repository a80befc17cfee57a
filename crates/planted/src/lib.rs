//! Rules that a special build breaks on purpose, to see that the checks notice.
