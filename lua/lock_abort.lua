-- Gives an acquisition up whose outcome is unknown. First the sign that refuses a copy of the acquire still on its
-- way, then the lock, if the acquire had taken it.
--
-- KEYS  1 lock  2 gone (of this acquisition)
-- ARGV  1 acquisition id  2 milliseconds that `gone` lives
-- Reply {code}
--
-- code  name
--    0  NOTHING   the acquisition held nothing, and never will
--    1  REMOVED   it held the lock, which is free now

local NOTHING, REMOVED = 0, 1

redis.call('SET', KEYS[2], 'aborted', 'PX', ARGV[2])
if redis.call('HGET', KEYS[1], 'owner') == ARGV[1] then
  redis.call('DEL', KEYS[1])
  return {REMOVED}
end
return {NOTHING}
