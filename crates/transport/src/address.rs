//! Addresses, and which of them go with certificates.

/// How an address is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Plaintext.
    Http,
    /// With certificates at both ends.
    Https,
}

/// Why an address is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// `https://` without certificates.
    #[error(
        "https needs certificates: give ca, cert and key, or write http:// where the cluster speaks plaintext"
    )]
    NoCertificates,
    /// `http://` with certificates.
    #[error(
        "http is plaintext, and certificates are configured: write https://, or leave ca, cert and key out"
    )]
    Plaintext,
    /// Another scheme.
    #[error("only http and https are supported")]
    Scheme,
}

impl Scheme {
    /// As in an address.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }

    /// The whole address: one without a scheme gets this one, one with the other is refused rather than
    /// spoken to in a way nobody asked for.
    ///
    /// # Errors
    /// Says what to write instead.
    pub fn address(self, text: &str) -> Result<String, AddressError> {
        let Some((scheme, _)) = text.split_once("://") else {
            return Ok(format!("{}://{text}", self.as_str()));
        };
        match (scheme, self) {
            ("http", Scheme::Http) | ("https", Scheme::Https) => Ok(text.to_owned()),
            ("https", Scheme::Http) => Err(AddressError::NoCertificates),
            ("http", Scheme::Https) => Err(AddressError::Plaintext),
            _ => Err(AddressError::Scheme),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_are_never_mixed() {
        assert_eq!(Scheme::Http.address("a:1").as_deref(), Ok("http://a:1"));
        assert_eq!(Scheme::Https.address("a:1").as_deref(), Ok("https://a:1"));
        assert_eq!(Scheme::Https.address("https://a:1").as_deref(), Ok("https://a:1"));
        assert_eq!(Scheme::Http.address("https://a:1"), Err(AddressError::NoCertificates));
        assert_eq!(Scheme::Https.address("http://a:1"), Err(AddressError::Plaintext));
        assert_eq!(Scheme::Https.address("ftp://a:1"), Err(AddressError::Scheme));
    }
}
