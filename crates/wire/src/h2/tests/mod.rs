//! Tests of connections without sockets, in virtual time.

mod attacks;
mod client;
mod flow;
mod peer;
mod requests;
mod streams;
