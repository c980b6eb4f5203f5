//! rustls without cryptography, which takes longer to build than all else that targets need. No target reads a private key.

pub use real::*;

/// As in rustls.
pub mod crypto {
    pub use real::crypto::*;

    /// As in rustls.
    pub mod aws_lc_rs {
        use std::sync::Arc;

        use real::Error;
        use real::crypto::{CryptoProvider, GetRandomFailed, KeyProvider, SecureRandom, WebPkiSupportedAlgorithms};
        use real::pki_types::PrivateKeyDer;
        use real::sign::SigningKey;

        /// A provider that can do nothing.
        pub fn default_provider() -> CryptoProvider {
            CryptoProvider {
                cipher_suites: Vec::new(),
                kx_groups: Vec::new(),
                signature_verification_algorithms: WebPkiSupportedAlgorithms { all: &[], mapping: &[] },
                secure_random: &Nothing,
                key_provider: &Nothing,
            }
        }

        #[derive(Debug)]
        struct Nothing;

        impl SecureRandom for Nothing {
            fn fill(&self, _: &mut [u8]) -> Result<(), GetRandomFailed> {
                Err(GetRandomFailed)
            }
        }

        impl KeyProvider for Nothing {
            fn load_private_key(&self, _: PrivateKeyDer<'static>) -> Result<Arc<dyn SigningKey>, Error> {
                Err(Error::General("fuzz targets read no private keys".to_owned()))
            }
        }
    }
}
