//! Decisions about bots. Facts of requests, records of DNS and the time go in; signals, scores and decisions come out.
//!
//! | | |
//! |---|---|
//! | [`agents`] | names that clients claim |
//! | [`score`] | signals, their points, and the decision by their sum |
//! | [`fcrdns`], [`ranges`] | proofs of a claim: forward-confirmed reverse DNS, published ranges |
//! | [`signature`] | signed agents: HTTP Message Signatures, Web Bot Auth |
//! | [`robots`] | rules of robots.txt |
//! | [`challenge`] | proofs of work, waits, and the cookies that remember them |
//! | [`fingerprint`] | JA4, and the beginning of HTTP/2 connections |
//! | [`crowdsec`] | decisions of CrowdSec |

pub mod agents;
pub mod challenge;
pub mod crowdsec;
pub mod fcrdns;
pub mod fingerprint;
pub mod ranges;
pub mod robots;
pub mod score;
pub mod signature;
