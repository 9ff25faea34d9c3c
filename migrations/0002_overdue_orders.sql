-- Unpaid orders by the time at which they lapse: the auditor asks for the overdue ones of a sale every half second.
CREATE INDEX orders_unpaid ON orders (sale_id, pay_before) WHERE status = 'created';
