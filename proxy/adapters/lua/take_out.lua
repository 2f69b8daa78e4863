-- Take fields out of a hash, each only while it still holds what was read: somebody may have put another word in its place meanwhile.
--
-- KEYS   1 hash
-- ARGV   field and SHA-1 of its value (hex), for each
-- Returns  how many went.

local gone = 0
for i = 1, #ARGV, 2 do
  local value = redis.call('HGET', KEYS[1], ARGV[i])
  if value and redis.sha1hex(value) == ARGV[i + 1] then gone = gone + redis.call('HDEL', KEYS[1], ARGV[i]) end
end
return gone
