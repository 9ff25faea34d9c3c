-- Stops a sale in this Redis before it is rebuilt. Works on a missing sale too: the marker stays.
--
-- KEYS  1 sale
-- ARGV  1 fence token  2 retention, milliseconds that the marker lives
-- Reply {code, run id of this process, generation stored or '0'}
--
-- code  name
--    0  STALE    a holder with a greater token was here: nothing written
--    1  FROZEN   nothing sells until a `warm` with this token

local STALE, FROZEN = 0, 1

local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local stored = redis.call('HMGET', KEYS[1], 'fence', 'generation')

if tonumber(stored[1] or 0) > tonumber(ARGV[1]) then
  return {STALE, run_id, stored[2] or '0'}
end

redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'frozen', '1')
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {FROZEN, run_id, stored[2] or '0'}
