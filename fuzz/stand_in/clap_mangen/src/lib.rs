//! clap_mangen without clap: the manual page of the configuration needs no more.

pub use roff;
