//! Parts of the product that a build can leave out.

/// Part of the product with a cargo feature of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionalPart {
    /// Automatic certificates.
    Acme,
    /// The controller for Kubernetes.
    Gateway,
    /// Translation of other servers' configurations.
    Import,
    /// WebAssembly modules.
    Modules,
    /// Traces.
    Traces,
}

impl OptionalPart {
    /// All parts.
    pub const ALL: [Self; 5] = [Self::Acme, Self::Gateway, Self::Import, Self::Modules, Self::Traces];

    /// True if this build has the part.
    pub const fn is_built(self) -> bool {
        match self {
            Self::Acme => cfg!(feature = "acme"),
            Self::Gateway => cfg!(feature = "gateway"),
            Self::Import => cfg!(feature = "import"),
            Self::Modules => cfg!(feature = "modules"),
            Self::Traces => cfg!(feature = "traces"),
        }
    }

    /// Name of the cargo feature.
    pub const fn feature(self) -> &'static str {
        match self {
            Self::Acme => "acme",
            Self::Gateway => "gateway",
            Self::Import => "import",
            Self::Modules => "modules",
            Self::Traces => "traces",
        }
    }

    /// Error for those who want the part, with what to do.
    pub fn absence(self) -> String {
        format!("{}; {}", self.absence_message(), self.absence_help())
    }

    /// Fact that this build lacks the part.
    pub(super) fn absence_message(self) -> String {
        let name = match self {
            Self::Acme => "automatic certificates",
            Self::Gateway => "controller for Kubernetes",
            Self::Import => "translations from other servers",
            Self::Modules => "modules",
            Self::Traces => "traces",
        };
        format!("this build of tailcoat has no {name}")
    }

    /// Way to get the part.
    pub(super) fn absence_help(self) -> String {
        format!("use a packaged build, or build with `--features {}`", self.feature())
    }
}
