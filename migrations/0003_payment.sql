-- Which payment an order was paid by, so that the same one again is told from a second one.

ALTER TABLE orders ADD COLUMN payment_id text;

ALTER TABLE orders ADD CONSTRAINT orders_payment_only_if_paid CHECK (payment_id IS NULL OR status = 'paid') NOT VALID;

ALTER TABLE orders VALIDATE CONSTRAINT orders_payment_only_if_paid;
