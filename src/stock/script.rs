//! The Lua scripts and their reply codes.
//!
//! A script's comment table and the enum here say the same; a test compares the two.

use std::sync::LazyLock;

use crate::redis_script::{Script, codes};

macro_rules! scripts {
    ($($name:ident = $file:literal),* $(,)?) => {
        $(pub(super) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(include_str!(concat!("../../lua/", $file))));)*
    };
}

scripts! {
    PURCHASE = "purchase.lua",
    FREEZE = "freeze.lua",
    WARM = "warm.lua",
    STOCK = "stock.lua",
    SALE = "sale.lua",
    RELEASE = "release.lua",
}

codes! {
    /// Replies of `purchase.lua`, one for each purchase.
    PurchaseCode {
        Cold = 0 as "COLD",
        Accepted = 1 as "ACCEPTED",
        Replayed = 2 as "REPLAYED",
        Retried = 3 as "RETRIED",
        Already = 4 as "ALREADY",
        SoldOut = 5 as "SOLD_OUT",
        NotEnough = 6 as "NOT_ENOUGH",
        NotStarted = 7 as "NOT_STARTED",
        Ended = 8 as "ENDED",
        Paused = 9 as "PAUSED",
        TooMany = 10 as "TOO_MANY",
        KeyReused = 11 as "KEY_REUSED",
    }
}

codes! {
    /// Replies of `freeze.lua`.
    FreezeCode {
        Stale = 0 as "STALE",
        Frozen = 1 as "FROZEN",
    }
}

codes! {
    /// Replies of `warm.lua`.
    WarmCode {
        Refused = 0 as "REFUSED",
        Warmed = 1 as "WARMED",
    }
}

codes! {
    /// Replies of `stock.lua`.
    StockCode {
        Cold = 0 as "COLD",
        Unchanged = 1 as "UNCHANGED",
        Raised = 2 as "RAISED",
    }
}

codes! {
    /// Replies of `sale.lua`.
    SaleCode {
        Cold = 0 as "COLD",
        Unchanged = 1 as "UNCHANGED",
        Changed = 2 as "CHANGED",
    }
}

codes! {
    /// Replies of `release.lua`.
    ReleaseCode {
        Cold = 0 as "COLD",
        NotHeld = 1 as "NOT_HELD",
        Overfull = 2 as "OVERFULL",
        Released = 3 as "RELEASED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis_script::documented;

    #[test]
    fn the_comment_tables_and_the_enums_say_the_same() {
        let scripts: [(&str, &[(i64, &str)]); 6] = [
            (include_str!("../../lua/purchase.lua"), PurchaseCode::TABLE),
            (include_str!("../../lua/freeze.lua"), FreezeCode::TABLE),
            (include_str!("../../lua/warm.lua"), WarmCode::TABLE),
            (include_str!("../../lua/stock.lua"), StockCode::TABLE),
            (include_str!("../../lua/sale.lua"), SaleCode::TABLE),
            (include_str!("../../lua/release.lua"), ReleaseCode::TABLE),
        ];
        for (script, table) in scripts {
            assert_eq!(documented(script), table);
        }
    }
}
