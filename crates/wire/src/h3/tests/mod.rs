//! A connection against a peer that can send anything, and attacks by name.

mod attacks;
mod client;
mod control;
mod messages;
mod peer;
