//! What becomes of an order after its purchase.

mod closing;

mod life;
