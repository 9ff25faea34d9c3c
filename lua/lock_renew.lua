-- Extends the lease of a lock that is ours. Never creates it again: in between another may have held it.
--
-- KEYS  1 lock
-- ARGV  1 acquisition id  2 time to live, milliseconds
-- Reply {code}
--
-- code  name
--    0  MISSING   nobody holds it: ours expired or was removed
--    1  RENEWED   ours; the time to live starts again
--    2  FOREIGN   somebody else holds it: theirs is untouched

local MISSING, RENEWED, FOREIGN = 0, 1, 2

local owner = redis.call('HGET', KEYS[1], 'owner')
if not owner then
  return {MISSING}
end
if owner ~= ARGV[1] then
  return {FOREIGN}
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {RENEWED}
