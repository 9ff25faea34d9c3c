-- Gives the units of a closed order back. The ledger has closed it before; this only follows.
--
-- Addressed by order, not by buyer: a late repeat must not free what the same buyer has bought since.
--
-- KEYS  1 sale  2 claims
-- ARGV  1 user  2 order  3 channel of stock updates  4 sale id, for the message
-- Reply {code, epoch, remaining}
--
-- code  name
--    0  COLD       the sale is not in this Redis, and is not made by a release
--    1  NOT_HELD   the buyer's claim, if any, names another order: nothing to give back
--    2  OVERFULL   the units would exceed the total: the books are wrong, nothing written
--    3  RELEASED   the units are on sale again, in a new epoch

local COLD, NOT_HELD, OVERFULL, RELEASED = 0, 1, 2, 3

local sale, claims = KEYS[1], KEYS[2]
local fields = redis.call('HMGET', sale, 'remaining', 'total', 'epoch', 'generation')
local remaining, total, epoch = tonumber(fields[1] or 0), tonumber(fields[2] or 0), tonumber(fields[3] or 0)

if not fields[1] then
  return {COLD, epoch, remaining}
end

local claim = redis.call('HGET', claims, ARGV[1])
local order, units
if claim then
  order, units = string.match(claim, '^([^|]+)|(%d+)|')
end
if order ~= ARGV[2] then
  return {NOT_HELD, epoch, remaining}
end
if remaining + tonumber(units) > total then
  return {OVERFULL, epoch, remaining}
end

remaining, epoch = remaining + tonumber(units), epoch + 1
redis.call('HDEL', claims, ARGV[1])
redis.call('HSET', sale, 'remaining', remaining, 'epoch', epoch)
redis.call('PUBLISH', ARGV[3], ARGV[4] .. ' ' .. fields[4] .. ' ' .. epoch)
return {RELEASED, epoch, remaining}
