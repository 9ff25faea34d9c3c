-- Brings the total of a sale up to what the ledger says. Absolute, so that a repeat or a lost reply adds nothing.
--
-- KEYS  1 sale
-- ARGV  1 generation  2 total, units that the ledger has given to Redis  3 channel of stock updates  4 sale id, for the message
-- Reply {code, epoch, remaining}
--
-- code  name
--    0  COLD       missing, frozen, or of another generation: a rebuild will bring the total
--    1  UNCHANGED  the stored total is that high already
--    2  RAISED     the difference is on sale, in a new epoch

local COLD, UNCHANGED, RAISED = 0, 1, 2

local sale = KEYS[1]
local fields = redis.call('HMGET', sale, 'remaining', 'generation', 'frozen', 'total', 'epoch')
local remaining, epoch = tonumber(fields[1] or 0), tonumber(fields[5] or 0)

if not fields[1] or fields[2] ~= ARGV[1] or fields[3] ~= '0' then
  return {COLD, epoch, remaining}
end

local more = tonumber(ARGV[2]) - tonumber(fields[4])
if more <= 0 then
  return {UNCHANGED, epoch, remaining}
end

remaining, epoch = remaining + more, epoch + 1
redis.call('HSET', sale, 'total', ARGV[2], 'remaining', remaining, 'epoch', epoch)
redis.call('PUBLISH', ARGV[3], ARGV[4] .. ' ' .. ARGV[1] .. ' ' .. epoch)
return {RAISED, epoch, remaining}
