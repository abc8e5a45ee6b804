//! Whether this process should be sent requests, and if not, why.

use super::{Service, ServiceError, ServiceResult};

impl Service {
    /// The database answers, has the schema that is needed, this process may hold sessions, and it is not going down.
    ///
    /// # Errors
    /// What is wrong.
    pub async fn check_ready(&self) -> ServiceResult<()> {
        self.refuse_when_closing()?;
        self.store.schema().await?.check_suffices().map_err(ServiceError::NotReady)?;
        if self.store.pulse().is_alive() {
            return Ok(());
        }
        let words = "this replica gave no sign of life in time and may hold no sessions; it is joining anew";
        Err(ServiceError::NotReady(words.to_owned()))
    }
}
