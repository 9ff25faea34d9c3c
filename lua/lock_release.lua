-- Gives a lock back: checks the owner and deletes in one step. What it leaves for a while (`gone`) answers a repeat
-- after a lost answer, and refuses a copy of the acquire that comes late.
--
-- KEYS  1 lock  2 gone (of this acquisition)
-- ARGV  1 acquisition id  2 milliseconds that `gone` lives
-- Reply {code}
--
-- code  name
--    0  MISSING    nobody holds it: ours expired or was removed
--    1  RELEASED   ours, and free now
--    2  FOREIGN    somebody else holds it: theirs is untouched
--    3  ALREADY    this acquisition was released or given up before: nothing written

local MISSING, RELEASED, FOREIGN, ALREADY = 0, 1, 2, 3

if redis.call('EXISTS', KEYS[2]) == 1 then
  return {ALREADY}
end

local owner = redis.call('HGET', KEYS[1], 'owner')
if not owner then
  return {MISSING}
end
if owner ~= ARGV[1] then
  return {FOREIGN}
end
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[2], 'released', 'PX', ARGV[2])
return {RELEASED}
