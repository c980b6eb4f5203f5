//! The `tailcoat` command.

use std::process::ExitCode;

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    // With transparent huge pages, memory for one more connection comes in pieces of 2 MiB, of which a server at rest
    // fills few. Fails only where a sandbox forbids it; then it takes more memory.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    tailcoat::cli::main()
}
