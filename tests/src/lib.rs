//! Shared helpers of the tests of the whole house.
