//! Tests of the engine with clients of another implementation, in simulated time.

mod attacks;
mod client;
mod ending;
mod handshake;
mod migration;
mod network;
mod raw;
mod server;
mod tls;
mod transfer;
mod variants;
mod world;
