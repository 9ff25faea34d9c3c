//! Who may not buy.

use super::sales::storable;
use super::{Catalogue, Error};
use crate::domain::UserId;

impl Catalogue {
    /// Blocks the user from now on; the nodes know within a second. Saying it again replaces the reason,
    /// which is 1 to 200 characters.
    pub async fn block(&self, user: &UserId, reason: &str) -> Result<(), Error> {
        storable(reason)?;
        if reason.is_empty() {
            return Err(Error::Invalid("a reason is 1 to 200 characters"));
        }
        let query = sqlx::query(
            "INSERT INTO blacklist (user_id, reason) VALUES ($1, $2)
             ON CONFLICT ON CONSTRAINT blacklist_pkey DO UPDATE SET reason = EXCLUDED.reason",
        );
        query.bind(user.as_str()).bind(reason).execute(&self.shared.pool).await?;
        self.show_own_change().await;
        Ok(())
    }

    /// Lets the user buy again. Harmless if the user was not blocked.
    pub async fn unblock(&self, user: &UserId) -> Result<(), Error> {
        let query = sqlx::query("DELETE FROM blacklist WHERE user_id = $1");
        query.bind(user.as_str()).execute(&self.shared.pool).await?;
        self.show_own_change().await;
        Ok(())
    }
}
