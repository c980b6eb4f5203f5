//! The `tailcoat` command.

fn main() {}
