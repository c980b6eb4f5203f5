//! Controller for Kubernetes: watches resources of Gateway API and Ingress, and translates them into routes.
//!
//! | part | what it does |
//! |---|---|
//! | `objects` | the fields of resources that matter here, and a snapshot of all |
//! | `translate` | from resources and their changes to changes of routes and statuses, without input and output |
//! | `ingress` | Ingresses with the annotations of ingress-nginx, and their form in Gateway API |
//! | `client` | requests to the API server: lists, watches, patches |
//! | `controller` | joins them: watches, leader election, statuses, the channel to servers |
//!
//! Servers hold no right in the API server. They get their routes over the channel of [`routes::Message`], and continue
//! with the last ones while the controller is away.

mod client;
mod controller;
mod ingress;
mod objects;
mod regular;
mod translate;

pub use client::Access;
pub use controller::{ChannelSettings, ControllerError, Key, Settings, run};
pub use ingress::{AnnotationOutcome, ImportedIngresses, annotation_table, import};
pub use translate::Addresses;
