-- Takes a lock that is free, and mints its fencing token in the same step. Safe to repeat: the same acquisition gets
-- the same token again, so a retry after a lost answer finds itself the holder instead of being shut out by itself.
--
-- KEYS  1 lock  2 tokens  3 gone (of this acquisition)
-- ARGV  1 acquisition id  2 time to live, milliseconds
--       3 floor: the greatest token that PostgreSQL knows, for a Redis that has forgotten
--       4 milliseconds that the counter of tokens lives after its last use
-- Reply {code, token, or milliseconds that another's lock still lives}
--
-- code  name
--    0  BUSY     somebody else holds it: nothing written
--    1  TAKEN    ours, under a token above the floor and above every earlier one
--    2  MINE     it was ours already, under the same token; the time to live starts again
--    3  GONE     this acquisition was released or given up: nothing written

local BUSY, TAKEN, MINE, GONE = 0, 1, 2, 3

local lock, tokens = KEYS[1], KEYS[2]

if redis.call('EXISTS', KEYS[3]) == 1 then
  return {GONE, 0}
end

local held = redis.call('HMGET', lock, 'owner', 'token')
if held[1] == ARGV[1] then
  redis.call('PEXPIRE', lock, ARGV[2])
  return {MINE, tonumber(held[2])}
end
if held[1] then
  return {BUSY, redis.call('PTTL', lock)}
end

if tonumber(redis.call('GET', tokens) or 0) < tonumber(ARGV[3]) then
  redis.call('SET', tokens, ARGV[3])
end
local token = redis.call('INCR', tokens)
redis.call('PEXPIRE', tokens, ARGV[4])
redis.call('HSET', lock, 'owner', ARGV[1], 'token', token)
redis.call('PEXPIRE', lock, ARGV[2])
return {TAKEN, token}
