/// Declares the registered codes of a type that holds a number, their names, and the error that ends a connection.
macro_rules! error_codes {
    ($codes:ident, $error:ident; $($name:ident = $code:literal;)*) => {
        impl $codes {
            $(#[doc = concat!("Code ", stringify!($code))] pub const $name: Self = Self($code);)*

            /// Returns the name in the IANA registry, or `"unknown"`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* _ => "unknown" }
            }
        }

        impl std::fmt::Display for $codes {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{} ({})", self.name(), self.0)
            }
        }

        /// Error of the peer that ends the connection.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $error {
            /// Error code to close the connection with.
            pub code: $codes,
            /// Description for the log and the peer. The text is fixed and contains no input of the peer.
            pub reason: &'static str,
        }

        impl $error {
            pub(super) const fn new(code: $codes, reason: &'static str) -> Self {
                Self { code, reason }
            }
        }
    };
}

pub(crate) use error_codes;
