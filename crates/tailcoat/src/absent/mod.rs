//! Stand-ins for the parts that this build leaves out (cargo features). Each has the part's names for the rest of the
//! server, and types without values for what never exists. Checks of the configuration reject what needs a part.

#[cfg(not(feature = "acme"))]
pub mod acme;
