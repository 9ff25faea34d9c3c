-- Tells a sale its state and opening hours. An older revision never overwrites a newer one.
--
-- KEYS  1 sale  2 claims  3 requests  4 outbox
-- ARGV  1 revision  2 state  3 starts_ms  4 ends_ms  5 expire_at_ms
-- Reply {code}
--
-- code  name
--    0  COLD       the sale is not in this Redis: a rebuild will bring its state
--    1  UNCHANGED  this revision or a newer one is stored
--    2  CHANGED

local COLD, UNCHANGED, CHANGED = 0, 1, 2

local stored = redis.call('HMGET', KEYS[1], 'remaining', 'revision')
if not stored[1] then
  return {COLD}
end
if tonumber(stored[2]) >= tonumber(ARGV[1]) then
  return {UNCHANGED}
end

redis.call('HSET', KEYS[1], 'revision', ARGV[1], 'state', ARGV[2], 'starts_ms', ARGV[3], 'ends_ms', ARGV[4])
for _, key in ipairs(KEYS) do
  redis.call('PEXPIREAT', key, ARGV[5])
end
return {CHANGED}
