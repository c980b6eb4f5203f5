//! Routes that a controller sends to servers: a pure description without input and output.
//!
//! A controller, such as that of Kubernetes, translates what it watches into a [`Snapshot`]: listeners, routes and
//! backends, each under a name that stays the same as long as the thing does. A server applies a snapshot, then
//! [`Change`]s, while it serves. [`Message`] is the form of both on the wire.
//!
//! | to describe | use |
//! |---|---|
//! | a port with its protocol, host name, certificates | [`Listener`] |
//! | requests over HTTP and gRPC: matches, filters, backends by weight | [`Route`] |
//! | connections over TLS (by server name), TCP; datagrams over UDP | [`StreamRoute`] |
//! | servers with their protocol, TLS and session persistence | [`Backend`] |
//! | addresses of a backend's servers | [`Endpoint`] |
//!
//! Rules of the description:
//!
//! - A route names its listeners. Its host names are those of the route that intersect the listener's
//!   ([`intersection`]); a route without host names has the listener's.
//! - Listeners with the same addresses and port share sockets. A request belongs to the listener with the most specific
//!   host name, and to no other (Gateway API: HTTP listener isolation).
//! - Of several matches, the most specific has the request, as Gateway API defines; see [`RouteTable`].
//! - A backend reference with weight 0 gets no requests. One that names no known backend has its share answered with
//!   500. A backend without a ready endpoint answers 503. A rule without any usable backend, redirect or response
//!   answers 500.
//! - A thing that cannot be applied is reported in [`Applied::errors`] by its name; all others are applied.
//! - Times are milliseconds. Names of header fields are in any case.
//!
//! # Example
//!
//! ```
//! use routes::{BackendRef, Backend, Endpoint, Filter, FieldChanges, Listener, Match, PathMatch, Protocol, Route, Rule, Snapshot};
//!
//! let mut snapshot = Snapshot::default();
//! snapshot.listeners.insert("default/web/http".into(), Listener {
//!     hostname: Some("*.example.com".into()),
//!     ..Listener::new(80, Protocol::Http)
//! });
//! snapshot.backends.insert("default/shop:8080".into(), Backend::default());
//! snapshot.endpoints.insert("default/shop:8080".into(), vec![Endpoint::new("10.1.2.3:8080".parse().unwrap())]);
//! snapshot.routes.insert("default/shop".into(), Route {
//!     listeners: vec!["default/web/http".into()],
//!     hostnames: vec!["shop.example.com".into()],
//!     rules: vec![Rule {
//!         matches: vec![Match { path: Some(PathMatch::Prefix("/cart".into())), ..Match::default() }],
//!         filters: vec![Filter::RequestHeaders(FieldChanges {
//!             set: vec![("X-Shop".into(), "1".into())],
//!             ..FieldChanges::default()
//!         })],
//!         backends: vec![BackendRef::new("default/shop:8080", 1)],
//!         ..Rule::default()
//!     }],
//!     ..Route::default()
//! });
//! let text = serde_json::to_string(&snapshot).unwrap();
//! assert_eq!(serde_json::from_str::<Snapshot>(&text).unwrap(), snapshot);
//! ```

mod backend;
mod filter;
mod hostname;
mod listener;
mod message;
mod route;
mod snapshot;
mod table;
mod text_tree;

pub use backend::{
    Backend, BackendProtocol, BackendTls, Endpoint, Lifetime, PersistenceKind, SessionPersistence, SubjectAltName,
};
pub use filter::{
    ExternalAuth, ExternalAuthKind, FieldChanges, Filter, PathRewrite, Redirect, RouteCors as Cors,
    RouteMirror as Mirror, RouteResponse as Respond, RouteRewrite as Rewrite,
};
pub use hostname::{intersection, is_valid_hostname, matches_hostname};
pub use listener::{ClientValidation, ListenerSpec as Listener, PemCertificate as Certificate, Protocol};
pub use message::{Applied, Hello, MESSAGE_BYTES_MAX, PlaneMessage as Message, VERSION};
pub use route::{
    BackendRef, GrpcMatch, PathMatch, Route, RouteMatch as Match, RouteRetry as Retry, Rule, StreamRoute, Timeouts,
    ValueMatch, ValueTest,
};
pub use snapshot::{RouteChange as Change, RouteSnapshot as Snapshot};
pub use table::{HostTable, Regexes, RequestView, RouteTable, TableEntry};
