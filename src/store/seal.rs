//! Seals at rest what agents need to go on: XChaCha20-Poly1305, bound to the row and the column it belongs to.

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use secrecy::{ExposeSecret, SecretSlice};
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::ids::SessionId;

/// Length of a sealing key, in bytes.
pub const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 24;
const VERSION: u8 = 1;

/// What is sealed. It opens as nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sealed {
    /// A resume state.
    ResumeState,
    /// An archive of an agent's files.
    AgentFiles,
}

impl Sealed {
    fn as_str(self) -> &'static str {
        match self {
            Self::ResumeState => "resume_state",
            Self::AgentFiles => "agent_files",
        }
    }
}

/// What went wrong with what is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SealError {
    /// It was changed, belongs to another row, or was sealed with another key.
    #[error("what is sealed cannot be opened: it was changed, or sealed with another key")]
    Corrupt,
    /// It is larger than is kept.
    #[error("it is too large to be sealed")]
    TooLarge,
    /// The system has no randomness to give, or a key is not 32 bytes.
    #[error("it cannot be sealed")]
    Unsealable,
}

/// A key that seals and opens.
pub struct Seal(SecretSlice<u8>);

impl Seal {
    /// A seal with this key of 32 bytes.
    ///
    /// # Errors
    /// [`SealError::Unsealable`] when the key has another length.
    pub fn new(key: Vec<u8>) -> Result<Self, SealError> {
        if key.len() == KEY_BYTES { Ok(Self(key.into())) } else { Err(SealError::Unsealable) }
    }

    /// A word by which two processes find out whether they have the same key. The key, 256 random bits, cannot be found from it.
    pub(super) fn fingerprint(&self) -> String {
        let mut digest = Sha256::new();
        digest.update(b"ostler seal fingerprint");
        digest.update(self.0.expose_secret());
        crate::domain::approval::hex(&digest.finalize())
    }

    fn cipher(&self) -> Result<XChaCha20Poly1305, SealError> {
        XChaCha20Poly1305::new_from_slice(self.0.expose_secret()).map_err(|_| SealError::Unsealable)
    }

    /// Seals bytes for one column of one row: version, nonce, ciphertext.
    ///
    /// # Errors
    /// [`SealError::Unsealable`].
    pub fn seal(
        &self,
        what: Sealed,
        org: &str,
        session: &SessionId,
        bytes: &[u8],
    ) -> Result<Vec<u8>, SealError> {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).map_err(|_| SealError::Unsealable)?;
        let payload = Payload { msg: bytes, aad: &bound_to(what, org, session) };
        let sealed =
            self.cipher()?.encrypt(&XNonce::from(nonce), payload).map_err(|_| SealError::Unsealable)?;
        Ok([&[VERSION], nonce.as_slice(), &sealed].concat())
    }

    /// Opens what was sealed for that column of that row.
    ///
    /// # Errors
    /// [`SealError::Corrupt`].
    pub fn open(
        &self,
        what: Sealed,
        org: &str,
        session: &SessionId,
        sealed: &[u8],
    ) -> Result<Vec<u8>, SealError> {
        let (version, rest) = sealed.split_first().ok_or(SealError::Corrupt)?;
        let (nonce, msg) = rest.split_at_checked(NONCE_BYTES).ok_or(SealError::Corrupt)?;
        let nonce: [u8; NONCE_BYTES] = nonce.try_into().map_err(|_| SealError::Corrupt)?;
        if *version != VERSION {
            return Err(SealError::Corrupt);
        }
        let payload = Payload { msg, aad: &bound_to(what, org, session) };
        self.cipher()?.decrypt(&XNonce::from(nonce), payload).map_err(|_| SealError::Corrupt)
    }
}

// A row that is copied to another tenant or session does not open there. The parts cannot run into each other: lengths lead.
fn bound_to(what: Sealed, org: &str, session: &SessionId) -> Vec<u8> {
    let what = what.as_str();
    format!("ostler/{what}/v1|{}:{org}|{}:{session}", org.len(), session.as_str().len()).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATE: Sealed = Sealed::ResumeState;

    fn seal() -> Seal {
        Seal::new(vec![7; KEY_BYTES]).unwrap()
    }

    #[test]
    fn what_is_sealed_for_a_row_opens_for_that_column_of_that_row_and_no_other() {
        let (seal, session) = (seal(), SessionId::mint());
        let sealed = seal.seal(STATE, "acme", &session, b"secret").unwrap();
        assert!(!sealed.windows(6).any(|window| window == b"secret"));
        assert_eq!(seal.open(STATE, "acme", &session, &sealed).unwrap(), b"secret");
        assert_eq!(seal.open(Sealed::AgentFiles, "acme", &session, &sealed), Err(SealError::Corrupt));
        assert_eq!(seal.open(STATE, "evil", &session, &sealed), Err(SealError::Corrupt));
        assert_eq!(seal.open(STATE, "acme", &SessionId::mint(), &sealed), Err(SealError::Corrupt));
        assert_eq!(
            Seal::new(vec![8; KEY_BYTES]).unwrap().open(STATE, "acme", &session, &sealed),
            Err(SealError::Corrupt)
        );
    }

    #[test]
    fn f31_any_flipped_bit_is_found() {
        let (seal, session) = (seal(), SessionId::mint());
        let sealed = seal.seal(STATE, "acme", &session, b"{}").unwrap();
        for bit in 0..sealed.len() * 8 {
            let mut bent = sealed.clone();
            bent[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(seal.open(STATE, "acme", &session, &bent), Err(SealError::Corrupt), "bit {bit}");
        }
        assert_eq!(seal.open(STATE, "acme", &session, &[]), Err(SealError::Corrupt));
    }

    #[test]
    fn a_key_of_another_length_is_no_key() {
        assert!(matches!(Seal::new(vec![7; 31]), Err(SealError::Unsealable)));
    }
}
