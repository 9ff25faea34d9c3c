-- Tells a sale its state and opening hours. An older revision never overwrites a newer one.
--
-- KEYS  1 sale  2 claims  3 requests  4 outbox
-- ARGV  1 revision  2 state  3 starts_ms  4 ends_ms  5 retention, milliseconds that the keys outlive the end of the sale
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

-- An end in the past deletes nothing: what was sold must stay readable, and what stands in the outbox is not yet in Kafka.
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local expire_at = string.format('%.0f', math.max(tonumber(ARGV[4]), now_ms) + tonumber(ARGV[5]))
for i = 1, 3 do
  redis.call('PEXPIREAT', KEYS[i], expire_at)
end
-- The outbox never lives shorter than it was to live already. GT takes a key without a time to live for the longest.
if redis.call('PTTL', KEYS[4]) == -1 then
  redis.call('PEXPIREAT', KEYS[4], expire_at)
else
  redis.call('PEXPIREAT', KEYS[4], expire_at, 'GT')
end
return {CHANGED}
